#!/bin/sh
# Installs what tests need, on Debian, as root: the packages of the machine's own Slurm, a browser,
# shells, runtimes of containers, and a root directory of the next Debian, whose Slurm is newer, in
# $HPCRUN_TESTBED_SLURM24
# (default: ~/.cache/hpcrun-testbed/slurm-24.11). Can be repeated; does nothing twice.
# --without-newer leaves the second one out.
set -eu

newer="${HPCRUN_TESTBED_SLURM24:-${XDG_CACHE_HOME:-$HOME/.cache}/hpcrun-testbed/slurm-24.11}"
complete=.hpcrun-testbed-complete # prerequisites.py looks for it
packages="slurmctld slurmd slurm-client slurmdbd munge mariadb-server iproute2 debootstrap elfutils g++ make chromium chromium-driver tmux zsh fish man-db groff charliecloud-runtime bubblewrap squashfs-tools libfuse3-dev openssh-client openssh-server git"
# libpython3-stdlib for the libraries that the host's Python is linked with.
newer_packages=slurmctld,slurmd,slurm-client,slurmdbd,munge,iproute2,elfutils,g++,make,libpython3-stdlib,charliecloud-runtime,bubblewrap,openssh-client,openssh-server

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" ||
        missing="$missing $package"
done
if [ -n "$missing" ]; then
    # The bed starts daemons of its own; the packages must not start theirs.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 1' HUP INT TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q update
    # shellcheck disable=SC2086 # a list
    apt-get -q -y --no-install-recommends install $missing
fi

[ "${1:-}" != --without-newer ] || exit 0
[ ! -e "$newer/$complete" ] || [ ! -e "$newer/usr/sbin/sshd" ] || exit 0

mirror="$(apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Label: Debian' 'Component: main' | head -n 1)"
if [ -z "$mirror" ]; then
    echo "install.sh: apt knows no Debian mirror to take the newer Slurm from" >&2
    exit 1
fi
partial="$newer.partial"
rm -rf --one-file-system "$partial"
mkdir -p "$partial"
debootstrap --variant=minbase \
    --include="$newer_packages" \
    trixie "$partial" "$mirror"
rm -rf "$partial"/var/cache/apt/archives/*.deb "$partial"/var/lib/apt/lists/*
touch "$partial/$complete"
[ ! -d "$newer" ] || rm -rf --one-file-system "$newer"
mv "$partial" "$newer"
