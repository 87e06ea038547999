/* A file system whose files lie in another directory, and whose server answers late.

   slow_storage SOURCE MOUNTPOINT MICROSECONDS THREADS

Every request that reaches it waits so long, as many at once as there are threads; what
the kernel may keep without asking (names and attributes for three seconds, contents while the file
does not change) it keeps, as that client does. Opens always ask. /.counters has the requests so
far: opens, other questions about names, requests to read, bytes that were read. */

#define FUSE_USE_VERSION 35
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *source, *counters = "/.counters";
static useconds_t late;
static atomic_long opens, names, reads, bytes;

#define ANSWER(call) return (call) < 0 ? -errno : 0
#define REAL(path) char real[4096]; snprintf(real, sizeof real, "%s%s", source, path)

static void wait_for(atomic_long *count) {
    atomic_fetch_add(count, 1);
    usleep(late);
}

static int own_getattr(const char *path, struct stat *found, struct fuse_file_info *info) {
    if (!strcmp(path, counters)) {
        memset(found, 0, sizeof *found);
        found->st_mode = S_IFREG | 0444, found->st_nlink = 1, found->st_size = 200;
        return 0;
    }
    if (info != NULL && info->fh) ANSWER(fstat(info->fh, found));
    REAL(path);
    wait_for(&names);
    ANSWER(lstat(real, found));
}
static int own_access(const char *path, int mode) { REAL(path); wait_for(&names); ANSWER(access(real, mode)); }
static int own_readlink(const char *path, char *target, size_t size) {
    REAL(path);
    wait_for(&names);
    ssize_t length = readlink(real, target, size - 1);
    if (length < 0) return -errno;
    target[length] = 0;
    return 0;
}
static int own_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
                       struct fuse_file_info *info, enum fuse_readdir_flags flags) {
    REAL(path);
    wait_for(&names);
    DIR *directory = opendir(real);
    if (directory == NULL) return -errno;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        /* Names come with their attributes, as by READDIRPLUS. */
        struct stat found;
        int plus = flags & FUSE_READDIR_PLUS && !fstatat(dirfd(directory), entry->d_name, &found, AT_SYMLINK_NOFOLLOW);
        fill(buffer, entry->d_name, plus ? &found : NULL, 0, plus ? FUSE_FILL_DIR_PLUS : 0);
    }
    closedir(directory);
    return 0;
}
static int own_mkdir(const char *path, mode_t mode) { REAL(path); wait_for(&names); ANSWER(mkdir(real, mode)); }
static int own_unlink(const char *path) { REAL(path); wait_for(&names); ANSWER(unlink(real)); }
static int own_rmdir(const char *path) { REAL(path); wait_for(&names); ANSWER(rmdir(real)); }
static int own_symlink(const char *target, const char *path) { REAL(path); wait_for(&names); ANSWER(symlink(target, real)); }
static int own_rename(const char *from, const char *to, unsigned flags) {
    char other[4096];
    REAL(from);
    snprintf(other, sizeof other, "%s%s", source, to);
    wait_for(&names);
    ANSWER(renameat2(AT_FDCWD, real, AT_FDCWD, other, flags));
}
static int own_chmod(const char *path, mode_t mode, struct fuse_file_info *info) { REAL(path); wait_for(&names); ANSWER(chmod(real, mode)); }
static int own_chown(const char *path, uid_t user, gid_t group, struct fuse_file_info *info) { REAL(path); wait_for(&names); ANSWER(lchown(real, user, group)); }
static int own_truncate(const char *path, off_t size, struct fuse_file_info *info) {
    if (info != NULL && info->fh) ANSWER(ftruncate(info->fh, size));
    REAL(path);
    wait_for(&names);
    ANSWER(truncate(real, size));
}
static int own_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *info) {
    REAL(path);
    wait_for(&names);
    ANSWER(utimensat(AT_FDCWD, real, times, AT_SYMLINK_NOFOLLOW));
}
static int opened(int descriptor, struct fuse_file_info *info) {
    if (descriptor < 0) return -errno;
    info->fh = descriptor;
    return 0;
}
static int own_open(const char *path, struct fuse_file_info *info) {
    if (!strcmp(path, counters)) {
        info->direct_io = 1;
        return 0;
    }
    REAL(path);
    wait_for(&opens);
    /* The kernel drops what it has of a file by its time and size (auto_cache). */
    return opened(open(real, info->flags & ~O_APPEND), info);
}
static int own_create(const char *path, mode_t mode, struct fuse_file_info *info) {
    REAL(path);
    wait_for(&opens);
    return opened(open(real, info->flags & ~O_APPEND, mode), info);
}
static int own_read(const char *path, char *data, size_t size, off_t offset, struct fuse_file_info *info) {
    if (!strcmp(path, counters)) {
        char text[200];
        int length = snprintf(text, sizeof text, "%ld %ld %ld %ld\n", opens, names, reads, bytes);
        if (offset >= length) return 0;
        memcpy(data, text + offset, length - offset);
        return length - offset;
    }
    wait_for(&reads);
    ssize_t length = pread(info->fh, data, size, offset);
    if (length < 0) return -errno;
    atomic_fetch_add(&bytes, length);
    return length;
}
static int own_write(const char *path, const char *data, size_t size, off_t offset, struct fuse_file_info *info) {
    usleep(late);
    ssize_t length = pwrite(info->fh, data, size, offset);
    return length < 0 ? -errno : length;
}
static int own_fsync(const char *path, int only_data, struct fuse_file_info *info) { ANSWER(fdatasync(info->fh)); }
static int own_release(const char *path, struct fuse_file_info *info) { if (info->fh) close(info->fh); return 0; }
static int own_statfs(const char *path, struct statvfs *found) { ANSWER(statvfs(source, found)); }
static void *own_init(struct fuse_conn_info *connection, struct fuse_config *config) {
    config->entry_timeout = config->attr_timeout = config->negative_timeout = 3;
    config->auto_cache = 1;
    config->use_ino = 1;
    connection->max_readahead = 1 << 20;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = own_init, .getattr = own_getattr, .access = own_access, .readlink = own_readlink,
    .readdir = own_readdir, .mkdir = own_mkdir, .unlink = own_unlink, .rmdir = own_rmdir,
    .symlink = own_symlink, .rename = own_rename, .chmod = own_chmod, .chown = own_chown,
    .truncate = own_truncate, .utimens = own_utimens, .open = own_open, .create = own_create,
    .read = own_read, .write = own_write, .fsync = own_fsync, .release = own_release,
    .statfs = own_statfs,
};

int main(int count, char *words[]) {
    if (count != 5) return fprintf(stderr, "usage: %s SOURCE MOUNTPOINT MICROSECONDS THREADS\n", words[0]), 2;
    char options[200];
    snprintf(options, sizeof options, "max_threads=%d,fsname=slow_storage,default_permissions,allow_other", atoi(words[4]));
    source = words[1], late = atoi(words[3]);
    umask(0);
    char *arguments[] = {words[0], words[2], "-f", "-o", options, NULL};
    return fuse_main(5, arguments, &operations, NULL);
}
