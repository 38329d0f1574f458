# shellcheck shell=bash
# Debian packages without installing them: read with apt from the sources that
# this system knows, but with lists and a package database of our own, so that
# neither root nor a lock is needed. Sourced by rdma-vm; needs $cache, say, die.

apt_opts=(
	-o "Dir::State::lists=$cache/apt/lists"
	-o "Dir::Cache=$cache/apt/cache"
	-o "Dir::State::status=$cache/apt/status"
	-o APT::Sandbox::User=root -o Acquire::Retries=3 -o Acquire::Languages=none
	-o APT::Install-Recommends=false -o APT::Install-Suggests=false
)

apt_update() {
	mkdir -p "$cache/apt/lists/partial" "$cache/apt/cache/archives/partial"
	: >"$cache/apt/status"
	say "reading the package lists"
	# A source out of reach is no reason to stop: the next step says what lacks.
	apt-get "${apt_opts[@]}" -q update >"$cache/apt/log" 2>&1 || true
}

# resolve PACKAGE...: prints "name version" of them and of all they depend on.
resolve() {
	apt-get "${apt_opts[@]}" -q -s install "$@" 2>>"$cache/apt/log" |
		sed -nE 's/^Inst ([^ :]+)[^ ]* (\[[^]]*\] )?\(([^ ]+) .*/\1 \3/p'
}

# resolve_kernel: prints "name version" of the kernel that $kernel_package means.
resolve_kernel() {
	local name
	name=$(apt-cache "${apt_opts[@]}" depends --important "$kernel_package" |
		sed -nE 's/^ *Depends: (linux-image-[^ ]+)$/\1/p' | head -n 1)
	name=${name:-$kernel_package}
	apt-cache "${apt_opts[@]}" policy "$name" | sed -nE "s/^ *Candidate: ([^(].*)/$name \1/p"
}

# download: takes "name version" lines; prints the .deb files' paths.
download() {
	local name version want=() lines
	lines=$(cat)
	[ -n "$lines" ] || return 1
	mkdir -p "$cache/debs"
	while read -r name version; do
		[ -n "$(deb_file "$name" "$version")" ] || want+=("$name=$version")
	done <<<"$lines"
	if [ ${#want[@]} -gt 0 ]; then
		say "downloading ${#want[@]} packages"
		rm -rf "$cache/debs/partial"
		mkdir "$cache/debs/partial"
		(cd "$cache/debs/partial" &&
			apt-get "${apt_opts[@]}" -q download "${want[@]}" >>"$cache/apt/log" 2>&1) || return 1
		mv "$cache/debs/partial/"*.deb "$cache/debs/"
		rmdir "$cache/debs/partial"
	fi
	while read -r name version; do
		deb_file "$name" "$version" | grep . || return 1
	done <<<"$lines"
}

# deb_file NAME VERSION: prints the path of that package if it is there.
deb_file() {
	local file
	for file in "$cache/debs/$1_${2//:/%3a}"_*.deb; do
		if [ -s "$file" ]; then echo "$file"; fi
	done
}

# fetch OUTFILE COMMAND...: downloads what COMMAND resolves and writes the .deb
# files' paths; with fresh package lists where the ones we have do not do.
fetch() {
	local out=$1 try
	shift
	for try in old new; do
		if [ $try = new ] || [ ! -e "$cache/apt/status" ]; then apt_update; fi
		if "$@" | download >"$out"; then return 0; fi
	done
	tail -n 15 "$cache/apt/log" >&2
	die "could not get the Debian packages: $*"
}

# unpack DEB DIR [TAR-OPTION...]
unpack() {
	local deb=$1 dir=$2
	shift 2
	dpkg-deb --fsys-tarfile "$deb" | tar -x -p -C "$dir" --keep-directory-symlink --no-same-owner "$@"
}
