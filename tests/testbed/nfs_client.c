/* A file system that caches as Linux's NFS client does, over a directory that stands for the server.

   nfs_client SOURCE MOUNTPOINT CONTROL OPTION,...

   One process is one host's client: several over one SOURCE see each other's changes when NFS clients
   would. Each rule names where it is from: nfs(5), or Linux's fs/nfs. Options are those of nfs(5):
   acregmin, acregmax, acdirmin, acdirmax (seconds, fractions too), noac, lookupcache=all|pos|none; and
     writeback=S  seconds until written data leaves by itself (vm.dirty_expire_centisecs: 30)
     blind        opening a directory asks nothing, as some clients of other storage do
   CONTROL is a file of 64-bit numbers that are read and written while it is mounted: [0] calls are not
   answered, as by a server that is down (a hard mount waits for ever); [1] microseconds that each call
   takes; from [2] on, the calls so far: lookup getattr open read write readdir change.

   Not here: locks (each host has its own, as with local_lock=all), more than the caller's own group. */

#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { LOOKUP, GETATTR, OPEN, READ, WRITE, READDIR, CHANGE, KINDS };
static struct { _Atomic int64_t silent, late, calls[KINDS]; } *control;

static double acregmin = 3, acregmax = 60, acdirmin = 30, acdirmax = 60, writeback = 30;
static int negative = 1, positive = 1, blind;
static const off_t MOST_UNSENT = 4 << 20;
static const uid_t NOBODY = 65534;

struct extent { struct extent *next; off_t at; size_t size; char data[]; };
/* What the kernel was told of a name in a directory: the inode, or 0 where there is none. */
struct name { struct name *next; ino_t inode; char text[]; };
struct listing { int users, count; struct timespec as_of; struct entry { ino_t inode; int kind; char *text; } *entries; };

struct file {
    struct file *next;
    int fd;                        /* O_PATH: the server's file handle */
    long lookups, handles;
    struct stat known;             /* its attributes as last heard, own writes included */
    double believed, until;        /* for how long attributes are believed, and until when */
    int data_changed, asked_again;
    int silly_dir; char *silly;    /* where it lies since it was removed while it was open */
    struct extent *unsent, *last; off_t unsent_size; int write_fd; double unsent_since;
    struct name *names;            /* of a directory */
    struct timespec names_as_of;
    struct listing *listing;
};
struct handle { int fd; struct listing *listing; };

static struct file root, *table[1 << 14];
static _Atomic long unsent_files;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fuse_session *session;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static int same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }
static struct file *of(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? &root : (struct file *)ino; }
static fuse_ino_t id(struct file *f) { return f == &root ? FUSE_ROOT_ID : (fuse_ino_t)f; }
static struct handle *handle(struct fuse_file_info *info) { return (struct handle *)info->fh; }

/* A call to the server. "If the soft option is not specified, NFS requests are retried indefinitely." */
static void call(int kind) {
    control->calls[kind]++;
    while (control->silent) usleep(5000);
    if (control->late) usleep(control->late);
}
/* root_squash of exports(5): "Map requests from uid/gid 0 to the anonymous uid/gid." */
static void become(fuse_req_t request) {
    const struct fuse_ctx *who = fuse_req_ctx(request);
    setfsgid(who->uid ? who->gid : NOBODY);
    setfsuid(who->uid ? who->uid : NOBODY);
}
static void be_the_server(void) { setfsuid(0), setfsgid(0); }

/* Attributes have come from the server. "If the attributes have not changed, the timeout doubles": see
   acregmin and acregmax, acdirmin and acdirmax. */
static void heard(struct file *f, const struct stat *found) {
    double least = S_ISDIR(found->st_mode) ? acdirmin : acregmin;
    double most = S_ISDIR(found->st_mode) ? acdirmax : acregmax;
    int same = f->believed && found->st_size == f->known.st_size && same_time(found->st_mtim, f->known.st_mtim)
        && same_time(found->st_ctim, f->known.st_ctim);
    if (!same) f->believed = least, f->data_changed = 1;
    else if (now() >= f->until) f->believed = f->believed * 2 > most ? most : f->believed * 2;
    f->known = *found;
    f->until = now() + f->believed;
}
/* An own change: its reply brings attributes, which are not another host's change of the contents. */
static void changed_here(struct file *f) {
    struct stat found;
    int before = f->data_changed;
    if (!fstat(f->fd, &found)) heard(f, &found), f->data_changed = before;
}
static int stale(struct file *f) {
    struct stat found;
    return fstat(f->fd, &found) || !found.st_nlink;
}
static double left(struct file *f) { double s = f->until - now(); return s > 0 ? s : 0; }

/* Data that was written, kept until close, fsync, or `writeback`: close(2) and fsync(2) "flush all pending
   writes", others see it only then ("DATA AND METADATA COHERENCE", close-to-open). */
static int send_writes(struct file *f) {
    int error = 0;
    for (struct extent *e = f->unsent, *next; e != NULL; e = next) {
        next = e->next;
        for (size_t done = 0; !error && done < e->size;) {
            ssize_t n = pwrite(f->write_fd, e->data + done, e->size - done, e->at + done);
            if (n < 0) error = errno; else done += n;
        }
        free(e);
    }
    if (f->unsent) {
        f->unsent = f->last = NULL, f->unsent_size = 0, unsent_files--;
        close(f->write_fd);
        changed_here(f);
    }
    return error;
}
static void *send_old_writes(void *unused) {
    for (;; usleep(20000)) {
        if (control->silent || !unsent_files) continue;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            for (struct file *f = table[i]; f != NULL; f = f->next)
                if (f->unsent && now() - f->unsent_since > writeback) control->calls[WRITE]++, send_writes(f);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static struct file **place(dev_t device, ino_t inode) {
    struct file **p = &table[(inode * 31 + device) % (sizeof table / sizeof *table)];
    while (*p != NULL && ((*p)->known.st_ino != inode || (*p)->known.st_dev != device)) p = &(*p)->next;
    return p;
}
/* The file behind a descriptor, which it keeps or closes. */
static struct file *file_of(int fd, const struct stat *found) {
    struct file **p = place(found->st_dev, found->st_ino);
    if (found->st_ino == root.known.st_ino && found->st_dev == root.known.st_dev) {
        close(fd);
        return &root;
    }
    if (*p != NULL) close(fd);
    else *p = calloc(1, sizeof **p), (*p)->fd = fd, (*p)->known.st_dev = found->st_dev, (*p)->known.st_ino = found->st_ino;
    return *p;
}
static void free_listing(struct listing *l) {
    if (l == NULL || --l->users) return;
    for (int i = 0; i < l->count; i++) free(l->entries[i].text);
    free(l->entries), free(l);
}
static void lost(struct file *f, uint64_t lookups) {
    if (f == &root || (f->lookups -= lookups) > 0) return;
    struct file **p = place(f->known.st_dev, f->known.st_ino);
    *p = f->next;
    send_writes(f);
    for (struct name *n = f->names, *next; n != NULL; n = next) next = n->next, free(n);
    free_listing(f->listing);
    close(f->fd), free(f);
}

static void remember(struct file *dir, const char *text, ino_t inode) {
    for (struct name *n = dir->names; n != NULL; n = n->next)
        if (!strcmp(n->text, text)) { n->inode = inode; return; }
    struct name *n = malloc(sizeof *n + strlen(text) + 1);
    strcpy(n->text, text), n->inode = inode, n->next = dir->names, dir->names = n;
}
/* Names whose answer is another one now, where a directory was seen to have changed: the kernel is to ask
   again (nfs_check_verifier). They are taken out; `drop` tells the kernel. */
static struct name *outdated(struct file *dir, const struct stat *found) {
    struct name *old = NULL, **p = &dir->names;
    if (same_time(dir->names_as_of, found->st_mtim)) return NULL;
    dir->names_as_of = found->st_mtim;
    while (*p != NULL) {
        struct name *n = *p;
        struct stat child;
        ino_t inode = fstatat(dir->fd, n->text, &child, AT_SYMLINK_NOFOLLOW) ? 0 : child.st_ino;
        if (inode == n->inode) p = &n->next;
        else *p = n->next, n->next = old, old = n;
    }
    return old;
}
static void drop(fuse_ino_t dir, struct name *old) {
    for (struct name *n = old, *next; n != NULL; n = next) {
        next = n->next;
        fuse_lowlevel_notify_inval_entry(session, dir, n->text, strlen(n->text));
        free(n);
    }
}

static void reply_attr(fuse_req_t request, struct file *f) {
    struct stat told = f->known;
    double seconds = left(f);
    pthread_mutex_unlock(&lock);
    fuse_reply_attr(request, &told, seconds);
}
static void reply_error(fuse_req_t request, int error) {
    be_the_server();
    pthread_mutex_unlock(&lock);
    fuse_reply_err(request, error);
}
static int held(fuse_req_t request, int error) {
    be_the_server();
    if (error) reply_error(request, error);
    return error;
}
/* Entries are believed as long as the attributes of their directory are (nfs_lookup_revalidate): "the
   client ... assumes they are valid until their parent directory's cached attributes expire." */
static struct name *entry(struct file *dir, const char *text, struct fuse_entry_param *told, int keep_negative) {
    struct stat found, of_dir;
    struct name *old = NULL;
    memset(told, 0, sizeof *told);
    if (now() >= dir->until && !fstat(dir->fd, &of_dir)) {
        control->calls[GETATTR]++;
        heard(dir, &of_dir);
        old = outdated(dir, &of_dir);
    }
    told->entry_timeout = positive ? left(dir) : 0;
    int fd = openat(dir->fd, text, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found)) {
        if (!negative || !keep_negative) told->entry_timeout = 0;
        else remember(dir, text, 0);
        return old;
    }
    struct file *f = file_of(fd, &found);
    f->lookups++, f->asked_again = 0;
    if (!f->unsent) heard(f, &found);
    remember(dir, text, found.st_ino);
    told->ino = id(f), told->attr = f->known, told->attr_timeout = left(f);
    return old;
}
static void reply_entry(fuse_req_t request, fuse_ino_t parent, const char *text, int error) {
    struct fuse_entry_param told;
    if (held(request, error)) return;
    changed_here(of(parent));
    struct name *old = entry(of(parent), text, &told, 0);
    pthread_mutex_unlock(&lock);
    if (told.ino) fuse_reply_entry(request, &told); else fuse_reply_err(request, ENOENT);
    drop(parent, old);
}
static void begin(fuse_req_t request, int kind) {
    call(kind);
    pthread_mutex_lock(&lock);
    become(request);
}

static void own_lookup(fuse_req_t request, fuse_ino_t parent, const char *text) {
    struct fuse_entry_param told;
    begin(request, LOOKUP);
    struct file *dir = of(parent);
    int probe = openat(dir->fd, text, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int error = probe < 0 && errno != ENOENT ? errno : stale(dir) ? ESTALE : 0;
    if (probe >= 0) close(probe);
    if (held(request, error)) return;
    struct name *old = entry(dir, text, &told, 1);
    pthread_mutex_unlock(&lock);
    fuse_reply_entry(request, &told);
    /* After the answer: who asks may hold the directory's lock. */
    drop(parent, old);
}
static void own_forget(fuse_req_t request, fuse_ino_t ino, uint64_t lookups) {
    pthread_mutex_lock(&lock);
    lost(of(ino), lookups);
    pthread_mutex_unlock(&lock);
    fuse_reply_none(request);
}
static void own_getattr(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *info) {
    struct file *f = of(ino);
    struct name *old = NULL;
    (void)info;
    pthread_mutex_lock(&lock);
    if (!f->unsent && now() >= f->until) {
        pthread_mutex_unlock(&lock);
        call(GETATTR);
        pthread_mutex_lock(&lock);
        struct stat found;
        if (fstat(f->fd, &found) || !found.st_nlink) return reply_error(request, ESTALE);
        heard(f, &found);
        if (S_ISDIR(found.st_mode)) old = outdated(f, &found);
    }
    reply_attr(request, f);
    drop(ino, old);
}
static void own_setattr(fuse_req_t request, fuse_ino_t ino, struct stat *wanted, int which, struct fuse_file_info *info) {
    struct file *f = of(ino);
    char path[40];
    int error = 0;
    begin(request, CHANGE);
    sprintf(path, "/proc/self/fd/%d", f->fd);
    if (stale(f)) error = ESTALE;
    if (!error && which & FUSE_SET_ATTR_MODE && chmod(path, wanted->st_mode)) error = errno;
    if (!error && which & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)
        && chown(path, which & FUSE_SET_ATTR_UID ? wanted->st_uid : (uid_t)-1, which & FUSE_SET_ATTR_GID ? wanted->st_gid : (gid_t)-1)) error = errno;
    if (!error && which & FUSE_SET_ATTR_SIZE) {
        error = send_writes(f);
        if (info != NULL ? ftruncate(handle(info)->fd, wanted->st_size) : truncate(path, wanted->st_size)) error = errno;
    }
    if (!error && which & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
        struct timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
        if (which & FUSE_SET_ATTR_ATIME) times[0] = wanted->st_atim;
        if (which & FUSE_SET_ATTR_ATIME_NOW) times[0].tv_nsec = UTIME_NOW;
        if (which & FUSE_SET_ATTR_MTIME) times[1] = wanted->st_mtim;
        if (which & FUSE_SET_ATTR_MTIME_NOW) times[1].tv_nsec = UTIME_NOW;
        if (utimensat(AT_FDCWD, path, times, 0)) error = errno;
    }
    if (held(request, error)) return;
    changed_here(f);
    reply_attr(request, f);
}
static void own_readlink(fuse_req_t request, fuse_ino_t ino) {
    char target[4096];
    call(READ);
    ssize_t size = readlinkat(of(ino)->fd, "", target, sizeof target - 1);
    if (size < 0 || stale(of(ino))) { fuse_reply_err(request, ESTALE); return; }
    target[size] = 0;
    fuse_reply_readlink(request, target);
}
static void own_mknod(fuse_req_t request, fuse_ino_t parent, const char *text, mode_t mode, dev_t device) {
    begin(request, CHANGE);
    reply_entry(request, parent, text, mknodat(of(parent)->fd, text, mode, device) ? errno : 0);
}
static void own_mkdir(fuse_req_t request, fuse_ino_t parent, const char *text, mode_t mode) {
    begin(request, CHANGE);
    reply_entry(request, parent, text, mkdirat(of(parent)->fd, text, mode) ? errno : 0);
}
static void own_symlink(fuse_req_t request, const char *target, fuse_ino_t parent, const char *text) {
    begin(request, CHANGE);
    reply_entry(request, parent, text, symlinkat(target, of(parent)->fd, text) ? errno : 0);
}
static void own_link(fuse_req_t request, fuse_ino_t ino, fuse_ino_t parent, const char *text) {
    char path[40];
    begin(request, CHANGE);
    sprintf(path, "/proc/self/fd/%d", of(ino)->fd);
    int error = linkat(AT_FDCWD, path, of(parent)->fd, text, AT_SYMLINK_FOLLOW) ? errno : 0;
    if (!error) changed_here(of(ino));
    reply_entry(request, parent, text, error);
}
/* A file that is removed while it is open here is renamed and goes with its last close
   (nfs_sillyrename); where another host has it open, that host finds it stale. */
static int make_silly(struct file *dir, const char *text) {
    static unsigned number;
    struct stat found;
    char silly[40];
    if (fstatat(dir->fd, text, &found, AT_SYMLINK_NOFOLLOW) || S_ISDIR(found.st_mode)) return 0;
    struct file *f = *place(found.st_dev, found.st_ino);
    if (f == NULL || !f->handles || f->silly) return 0;
    sprintf(silly, ".nfs%016lx%08x", (unsigned long)found.st_ino, ++number);
    if (renameat(dir->fd, text, dir->fd, silly)) return 0;
    f->silly = strdup(silly), f->silly_dir = openat(dir->fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return 1;
}
static void own_unlink(fuse_req_t request, fuse_ino_t parent, const char *text) {
    struct file *dir = of(parent);
    begin(request, CHANGE);
    int error = make_silly(dir, text) ? 0 : unlinkat(dir->fd, text, 0) ? errno : 0;
    if (held(request, error)) return;
    remember(dir, text, 0), changed_here(dir);
    reply_error(request, 0);
}
static void own_rmdir(fuse_req_t request, fuse_ino_t parent, const char *text) {
    struct file *dir = of(parent);
    begin(request, CHANGE);
    if (held(request, unlinkat(dir->fd, text, AT_REMOVEDIR) ? errno : 0)) return;
    remember(dir, text, 0), changed_here(dir);
    reply_error(request, 0);
}
static void own_rename(fuse_req_t request, fuse_ino_t parent, const char *text, fuse_ino_t other, const char *target, unsigned flags) {
    struct file *from = of(parent), *to = of(other);
    struct stat found;
    begin(request, CHANGE);
    int error = flags ? EINVAL : stale(from) || stale(to) ? ESTALE : 0;
    if (!error) make_silly(to, target);
    if (!error && renameat(from->fd, text, to->fd, target)) error = errno;
    if (held(request, error)) return;
    remember(from, text, 0);
    if (!fstatat(to->fd, target, &found, AT_SYMLINK_NOFOLLOW)) remember(to, target, found.st_ino);
    changed_here(from), changed_here(to);
    reply_error(request, 0);
}

static int open_behind(struct file *f, int flags, struct fuse_file_info *info) {
    char path[40];
    sprintf(path, "/proc/self/fd/%d", f->fd);
    int fd = open(path, (flags & ~(O_APPEND | O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW)) | O_CLOEXEC);
    if (fd < 0) return errno;
    struct handle *h = calloc(1, sizeof *h);
    h->fd = fd, info->fh = (uint64_t)h, f->handles++;
    return 0;
}
/* Close-to-open: "When an application opens a file stored on an NFS version 3 server, the NFS client checks
   that the file exists on the server": what changed is told by ESTALE, at which the kernel looks the name up
   again and has the new attributes (or file) before it opens. */
static void own_open(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *info) {
    struct file *f = of(ino);
    struct stat found;
    begin(request, OPEN);
    int error = fstat(f->fd, &found) || !found.st_nlink ? ESTALE : 0;
    if (!error && !f->unsent && (found.st_size != f->known.st_size || !same_time(found.st_mtim, f->known.st_mtim)) && !f->asked_again)
        f->asked_again = 1, error = ESTALE;
    if (!error) error = open_behind(f, info->flags, info);
    if (held(request, error)) return;
    int unasked = f->asked_again;
    info->keep_cache = !f->data_changed && !unasked;
    f->data_changed = f->asked_again = 0;
    if (!f->unsent) changed_here(f);
    pthread_mutex_unlock(&lock);
    if (unasked) fuse_lowlevel_notify_inval_inode(session, ino, -1, 0);
    fuse_reply_open(request, info);
}
static void own_create(fuse_req_t request, fuse_ino_t parent, const char *text, mode_t mode, struct fuse_file_info *info) {
    struct file *dir = of(parent);
    struct fuse_entry_param told;
    begin(request, OPEN);
    int fd = openat(dir->fd, text, (info->flags & ~O_APPEND) | O_CREAT | O_CLOEXEC, mode);
    if (held(request, fd < 0 ? errno : 0)) return;
    changed_here(dir);
    struct name *old = entry(dir, text, &told, 0);
    if (!told.ino) { close(fd), reply_error(request, ENOENT), drop(parent, old); return; }
    struct handle *h = calloc(1, sizeof *h);
    h->fd = fd, info->fh = (uint64_t)h, of(told.ino)->handles++, of(told.ino)->data_changed = 0;
    pthread_mutex_unlock(&lock);
    fuse_reply_create(request, &told, info);
    drop(parent, old);
}
static void own_read(fuse_req_t request, fuse_ino_t ino, size_t size, off_t at, struct fuse_file_info *info) {
    struct file *f = of(ino);
    char *data = calloc(1, size + 1);
    call(READ);
    pthread_mutex_lock(&lock);
    int error = !f->silly && stale(f) ? ESTALE : 0;
    ssize_t length = error ? 0 : pread(handle(info)->fd, data, size, at);
    if (length < 0) error = errno, length = 0;
    for (struct extent *e = f->unsent; !error && e != NULL; e = e->next) {
        off_t from = e->at > at ? e->at : at, to = e->at + e->size < at + size ? e->at + e->size : at + size;
        if (from >= to) continue;
        memcpy(data + (from - at), e->data + (from - e->at), to - from);
        if (to - at > length) length = to - at;
    }
    pthread_mutex_unlock(&lock);
    if (error) fuse_reply_err(request, error); else fuse_reply_buf(request, data, length);
    free(data);
}
static void own_write(fuse_req_t request, fuse_ino_t ino, const char *data, size_t size, off_t at, struct fuse_file_info *info) {
    struct file *f = of(ino);
    pthread_mutex_lock(&lock);
    if (!f->silly && stale(f)) return reply_error(request, ESTALE);
    struct extent *e = f->last;
    if (e != NULL && e->at + (off_t)e->size == at && e->size + size < 1 << 20) {
        /* Its place in the list is the end, found again below. */
        struct extent **p = &f->unsent;
        while (*p != e) p = &(*p)->next;
        e = realloc(e, sizeof *e + e->size + size), *p = e;
        memcpy(e->data + e->size, data, size), e->size += size;
    } else {
        struct extent **p = &f->unsent;
        while (*p != NULL) p = &(*p)->next;
        e = malloc(sizeof *e + size), *p = e;
        e->next = NULL, e->at = at, e->size = size, memcpy(e->data, data, size);
    }
    if (!f->unsent_size) f->unsent_since = now(), f->write_fd = dup(handle(info)->fd), unsent_files++;
    f->last = e, f->unsent_size += size;
    if (at + (off_t)size > f->known.st_size) f->known.st_size = at + size;
    clock_gettime(CLOCK_REALTIME, &f->known.st_mtim);
    int error = 0;
    if (f->unsent_size > MOST_UNSENT) {
        pthread_mutex_unlock(&lock);
        call(WRITE);
        pthread_mutex_lock(&lock);
        error = send_writes(f);
    }
    pthread_mutex_unlock(&lock);
    if (error) fuse_reply_err(request, error); else fuse_reply_write(request, size);
}
static void send_now(fuse_req_t request, fuse_ino_t ino) {
    pthread_mutex_lock(&lock);
    int any = of(ino)->unsent != NULL, error = 0;
    pthread_mutex_unlock(&lock);
    if (any) {
        call(WRITE);
        pthread_mutex_lock(&lock);
        error = send_writes(of(ino));
        pthread_mutex_unlock(&lock);
    }
    fuse_reply_err(request, error);
}
static void own_flush(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *info) { (void)info; send_now(request, ino); }
static void own_fsync(fuse_req_t request, fuse_ino_t ino, int data, struct fuse_file_info *info) { (void)info, (void)data; send_now(request, ino); }
static void own_fsyncdir(fuse_req_t request, fuse_ino_t ino, int data, struct fuse_file_info *info) { (void)ino, (void)info, (void)data; fuse_reply_err(request, 0); }
static void own_release(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *info) {
    struct file *f = of(ino);
    pthread_mutex_lock(&lock);
    close(handle(info)->fd), free(handle(info));
    if (!--f->handles && f->silly) {
        unlinkat(f->silly_dir, f->silly, 0);
        close(f->silly_dir), free(f->silly), f->silly = NULL;
    }
    pthread_mutex_unlock(&lock);
    fuse_reply_err(request, 0);
}

static struct listing *list(struct file *dir, struct timespec as_of) {
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return NULL;
    struct listing *l = calloc(1, sizeof *l);
    DIR *stream = fdopendir(fd);
    l->users = 1, l->as_of = as_of;
    for (struct dirent *d; (d = readdir(stream)) != NULL; l->count++) {
        if (!(l->count & (l->count + 1))) l->entries = realloc(l->entries, (2 * l->count + 2) * sizeof *l->entries);
        l->entries[l->count] = (struct entry){d->d_ino, d->d_type, strdup(d->d_name)};
    }
    closedir(stream);
    return l;
}
/* Opening a directory asks for its attributes (nfs_lookup_verify_inode, LOOKUP_OPEN), and what it held is
   read again where these changed. */
static void own_opendir(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *info) {
    struct file *dir = of(ino);
    struct stat found;
    struct name *old = NULL;
    begin(request, GETATTR);
    if (held(request, fstat(dir->fd, &found) || !found.st_nlink ? ESTALE : 0)) return;
    int is_news = !blind && !same_time(found.st_mtim, dir->known.st_mtim);
    if (!blind) heard(dir, &found), old = outdated(dir, &found);
    else if (now() >= dir->until) heard(dir, &found);
    if (dir->listing == NULL || !same_time(dir->listing->as_of, dir->known.st_mtim)) {
        become(request);
        struct listing *fresh = list(dir, found.st_mtim);
        if (held(request, fresh == NULL ? errno : 0)) { drop(ino, old); return; }
        control->calls[READDIR]++;
        free_listing(dir->listing);
        dir->listing = fresh;
    }
    struct handle *h = calloc(1, sizeof *h);
    h->listing = dir->listing, h->listing->users++, info->fh = (uint64_t)h;
    pthread_mutex_unlock(&lock);
    drop(ino, old);
    /* fs/nfs/dir.c, nfs_lookup_verify_inode: an open revalidates the inode, which fstat(2) tells of. */
    if (is_news) fuse_lowlevel_notify_inval_inode(session, ino, -1, 0);
    fuse_reply_open(request, info);
}
static void own_readdir(fuse_req_t request, fuse_ino_t ino, size_t size, off_t at, struct fuse_file_info *info) {
    struct listing *l = handle(info)->listing;
    char *buffer = malloc(size);
    size_t used = 0;
    (void)ino;
    for (; at < l->count; at++) {
        struct stat told = {.st_ino = l->entries[at].inode, .st_mode = (mode_t)l->entries[at].kind << 12};
        size_t wanted = fuse_add_direntry(request, buffer + used, size - used, l->entries[at].text, &told, at + 1);
        if (wanted > size - used) break;
        used += wanted;
    }
    fuse_reply_buf(request, buffer, used);
    free(buffer);
}
static void own_releasedir(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *info) {
    (void)ino;
    pthread_mutex_lock(&lock);
    free_listing(handle(info)->listing), free(handle(info));
    pthread_mutex_unlock(&lock);
    fuse_reply_err(request, 0);
}
static void own_statfs(fuse_req_t request, fuse_ino_t ino) {
    struct statvfs found;
    (void)ino;
    call(GETATTR);
    if (fstatvfs(root.fd, &found)) fuse_reply_err(request, errno); else fuse_reply_statfs(request, &found);
}

/* Truncated by a call of its own as it is opened, once it was looked up again. */
static void own_init(void *unused, struct fuse_conn_info *connection) {
    (void)unused;
    connection->want &= ~FUSE_CAP_ATOMIC_O_TRUNC;
}

static const struct fuse_lowlevel_ops operations = {
    .init = own_init,
    .lookup = own_lookup, .forget = own_forget, .getattr = own_getattr, .setattr = own_setattr,
    .readlink = own_readlink, .mknod = own_mknod, .mkdir = own_mkdir, .symlink = own_symlink, .link = own_link,
    .unlink = own_unlink, .rmdir = own_rmdir, .rename = own_rename, .open = own_open, .create = own_create,
    .read = own_read, .write = own_write, .flush = own_flush, .fsync = own_fsync, .release = own_release,
    .fsyncdir = own_fsyncdir, .opendir = own_opendir, .readdir = own_readdir, .releasedir = own_releasedir,
    .statfs = own_statfs,
};

static int set(char *options) {
    struct { const char *name; double *value; } seconds[] = {
        {"acregmin", &acregmin}, {"acregmax", &acregmax}, {"acdirmin", &acdirmin}, {"acdirmax", &acdirmax},
        {"writeback", &writeback}};
    for (char *word; (word = strsep(&options, ",")) != NULL;) {
        int known = 0;
        if (!*word) continue;
        if (!strcmp(word, "blind")) known = blind = 1;
        else if (!strcmp(word, "noac")) known = 1, acregmin = acregmax = acdirmin = acdirmax = writeback = 0;
        else if (!strncmp(word, "lookupcache=", 12)) {
            known = 1, positive = strcmp(word + 12, "none") != 0, negative = !strcmp(word + 12, "all");
        } else
            for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
                size_t length = strlen(seconds[i].name);
                if (!strncmp(word, seconds[i].name, length) && word[length] == '=')
                    known = 1, *seconds[i].value = atof(word + length + 1);
            }
        if (!known) return fprintf(stderr, "nfs_client: unknown option %s\n", word), 0;
    }
    return 1;
}

int main(int count, char *words[]) {
    if (count != 5) return fprintf(stderr, "usage: %s SOURCE MOUNTPOINT CONTROL OPTION,...\n", words[0]), 2;
    if (!set(words[4])) return 2;
    int fd = open(words[3], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *control)) return perror(words[3]), 1;
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    root.fd = open(words[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (control == MAP_FAILED || root.fd < 0 || fstat(root.fd, &root.known)) return perror(words[1]), 1;
    root.lookups = 1;
    heard(&root, &root.known);
    struct rlimit most = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_NOFILE, &most);
    setgroups(0, NULL), umask(0);

    char *arguments[] = {words[0], "-o", "fsname=server:/export,subtype=nfs,default_permissions,allow_other"};
    struct fuse_args parsed = FUSE_ARGS_INIT(3, arguments);
    session = fuse_session_new(&parsed, &operations, sizeof operations, NULL);
    if (session == NULL || fuse_session_mount(session, words[2])) return 1;
    /* Mounted; who started it waits for this process to go to the background. */
    if (fuse_daemonize(0) || fuse_set_signal_handlers(session)) return 1;
    pthread_t thread;
    pthread_create(&thread, NULL, send_old_writes, NULL);
    struct fuse_loop_config *loop = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(loop, 512);
    int result = fuse_session_loop_mt(session, loop);
    fuse_session_unmount(session);
    return result != 0;
}
