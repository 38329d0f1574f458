# Programs that write a file anew beside the old one, or over it.
needs vim perl patch
for i in $(seq 200); do echo "line $i of the old text"; done >text
cp text want
sed 's/old/new/' text >want
sed -i 's/old/new/' text
cmp text want
perl -i.bak -pe 's/new/newer/' text
cmp text.bak want
sed 's/new/newer/' want >want2
cmp text want2
chmod 640 text
# vim in its ways of writing: over the file, or a new file and rename.
for copy in yes no auto; do
	vim -Nu NONE -i NONE -es -c "set backup backupcopy=$copy directory=. backupdir=." -c "%s/newer/$copy/" -c wq text </dev/null >/dev/null ||
		fail "vim with backupcopy=$copy"
	sed "s/newer/$copy/" want2 | cmp - text
	[ "$(stat -c %a text)" = 640 ] || fail "mode after vim is $(stat -c %a text)"
	cp want2 text
done
vim -Nu NONE -i NONE -es -c 'set undofile undodir=.' -c 'normal Gonew line' -c wq text </dev/null >/dev/null
[ "$(tail -n 1 text)" = 'new line' ] || fail "vim did not append"
[ -z "$(find . -name '.*.sw?')" ] || fail "a swap file is left"
echo appended >>text
[ "$(tail -n 1 text)" = appended ] || fail "the shell did not append"
install -m 750 text installed
[ "$(stat -c %a installed)" = 750 ] || fail "mode after install"
sort -o text text
patch -s installed < <(diff -u installed text || true)
cmp installed text
