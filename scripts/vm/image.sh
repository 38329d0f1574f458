# shellcheck shell=bash
# The guest's image: an uncompressed kernel and initramfs. Sourced by rdma-vm;
# sets image to its folder.

guest_packages=(
	busybox-static bash coreutils util-linux procps
	libc6 libgcc-s1
	libibverbs1 ibverbs-providers ibverbs-utils
	iproute2 fuse3
)
# Loaded at boot, with what they depend on.
boot_modules=(
	virtio_pci virtio_console virtio_rng qemu_fw_cfg 9pnet_virtio 9p
	crc32_generic veth ib_uverbs rdma_rxe fuse
)
# Also there, for modprobe.
spare_modules=(sch_netem)

unpack_guest() { # unpack_guest DIR ROOT
	local deb name applet bb=$2/usr/bin/busybox root=$2
	mkdir -p "$root"/usr/{bin,sbin,lib,lib64} \
		"$root"/{dev,proc,sys,run,tmp,root,work,mnt,var/tmp,etc/rdma-vm}
	chmod 1777 "$root"/tmp "$root"/var/tmp
	for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
	ln -s /run "$root/var/run"
	while read -r deb; do
		# Nothing here runs a package's own scripts.
		case ${deb##*/} in perl*|libperl*|libgdbm*|debconf*|adduser_*|passwd_*) continue ;; esac
		unpack "$deb" "$root" --exclude=./usr/share/{doc,man,locale,info,lintian,bash-completion,perl5} \
			--exclude=./usr/share/misc/pci.ids --exclude=./usr/lib/x86_64-linux-gnu/gconv \
			--exclude='./lib/modules-load.d'
	done <"$1/debs"
	# Only the one provider: the others cost time at each program's start.
	find "$root/etc/libibverbs.d" -name '*.driver' ! -name 'rxe.driver' -delete
	for applet in $("$bb" --list); do
		[ -e "$root/usr/bin/$applet" ] || [ -L "$root/usr/bin/$applet" ] ||
			[ -e "$root/usr/sbin/$applet" ] || [ -L "$root/usr/sbin/$applet" ] ||
			ln -s busybox "$root/usr/bin/$applet"
	done
}

configure_guest() { # configure_guest ROOT
	local etc=$1/etc
	printf '%s\n' root:x:0:0:root:/root:/bin/bash user:x:1000:1000:user:/tmp:/bin/bash >"$etc/passwd"
	printf '%s\n' root:x:0: user:x:1000: >"$etc/group"
	printf '%s\n' '127.0.0.1 localhost rdma-vm' '::1 localhost' '10.77.0.1 rxe0' '10.77.0.2 rxe1' >"$etc/hosts"
	printf '%s\n' 'passwd: files' 'group: files' 'hosts: files' >"$etc/nsswitch.conf"
	echo user_allow_other >"$etc/fuse.conf"
	ln -sf /proc/mounts "$etc/mtab"
	install -m 644 "$here/vm/fstab" "$etc/fstab"
	chmod u+s "$1/usr/bin/fusermount3" # as its package's script would
	install -m 755 "$here/vm/init" "$1/init"
	install -m 755 "$here/vm/roce-up" "$1/usr/sbin/roce-up"
}

# copy_modules KERNEL-DIR ROOT: the modules that the guest needs.
copy_modules() {
	local kdir=$1 root=$2 version bb=$2/usr/bin/busybox m name file from to
	version=$(ls "$kdir/lib/modules")
	from=$kdir/lib/modules/$version to=$root/lib/modules/$version
	find "$from" -name '*.ko.xz' -print0 | xargs -0 -r -n 64 xz -d
	"$bb" depmod -b "$kdir" "$version"
	local -A deps=() path=() taken=()
	while IFS=: read -r file m; do
		name=${file##*/}
		name=${name%.ko}
		path[${name//-/_}]=$file
		deps[$file]=$m
	done <"$from/modules.dep"
	take() { # take MODULE-FILE: copies it, and what it depends on
		local f=$1 d
		[ -z "${taken[$f]:-}" ] || return 0
		taken[$f]=1
		for d in ${deps[$f]}; do take "$d"; done
		mkdir -p "$to/${f%/*}"
		cp "$from/$f" "$to/$f"
	}
	for m in "${boot_modules[@]}" "${spare_modules[@]}"; do
		if [ -n "${path[$m]:-}" ]; then
			take "${path[$m]}"
		elif ! tr - _ <"$from/modules.builtin" | grep -q "/$m\.ko$"; then
			die "this kernel has no module $m"
		fi
	done
	for m in "${boot_modules[@]}"; do
		if [ -n "${path[$m]:-}" ]; then echo "$m"; fi
	done >"$root/etc/rdma-vm/modules"
	cp "$from/modules.builtin" "$from/modules.order" "$to/"
	"$bb" depmod -b "$root" "$version"
}

# copy_kernel KERNEL-DIR DIR: unpacked where that works, it starts seconds sooner.
copy_kernel() {
	local file offset
	file=$(echo "$1"/boot/vmlinuz-*)
	cp "$file" "$2/vmlinuz"
	offset=$(LC_ALL=C grep -abom 1 $'\xfd7zXZ' "$file" | head -n 1 | cut -d: -f1) || true
	if [ -n "$offset" ] && grep -qx CONFIG_PVH=y "$1"/boot/config-*; then
		tail -c "+$((offset + 1))" "$file" | xz -dc --single-stream >"$2/vmlinux" 2>/dev/null || true
		if [ "$(head -c 4 "$2/vmlinux" | tail -c 3)" = ELF ]; then
			rm "$2/vmlinuz"
			return
		fi
	fi
	mv "$2/vmlinuz" "$2/vmlinux"
}

build_image() { # build_image DIR
	local dir=$1 root=$1/root kdir=$1/kernel
	mkdir -p "$root" "$kdir"
	fetch "$dir/debs" resolve "${guest_packages[@]}"
	fetch "$dir/kernel.deb" resolve_kernel
	say "unpacking"
	unpack_guest "$dir" "$root"
	configure_guest "$root"
	unpack "$(cat "$dir/kernel.deb")" "$kdir"
	[ -d "$kdir/lib/modules" ] || { mkdir -p "$kdir/lib"; mv "$kdir/usr/lib/modules" "$kdir/lib/modules"; }
	copy_modules "$kdir" "$root"
	copy_kernel "$kdir" "$dir"
	(cd "$root" && find . | LC_ALL=C sort | "$root/usr/bin/busybox" cpio -o -H newc -R 0:0) >"$dir/initrd" 2>/dev/null
	sed 's,.*/,,' "$dir/debs" "$dir/kernel.deb" >"$dir/packages"
	rm -rf "$root" "$kdir" "$dir/debs" "$dir/kernel.deb"
}

image=''
prepare_image() {
	local key
	key=$(cat "$here"/vm/* <(echo "$kernel_package") | sha256sum | cut -c 1-16)
	image=$cache/image-$key
	[ ! -e "$image/ok" ] || return 0
	note "building the guest's image (once)"
	rm -rf "$image" "$image.new"
	mkdir "$image.new"
	build_image "$image.new"
	: >"$image.new/ok"
	mv "$image.new" "$image"
	# Those of earlier versions of these files.
	find "$cache" -maxdepth 1 -name 'image-*' ! -path "$image" -exec rm -rf {} +
}
