# A repository of its own, and the clone of a local one; gc packs, fsck checks.
needs git
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q own
cd own
tree work
rmdir work/empty
git add .
git commit -q -m first
for i in 1 2 3; do
	echo "$i" >>work/a/b/text-5
	git mv "work/a/b/text-1$i" "work/renamed-$i"
	git commit -q -a -m "change $i"
done
git checkout -q -b side HEAD~2
echo side >side
git add side
git commit -q -m side
git checkout -q -
git merge -q -m merge side
git gc -q --prune=now
git fsck --strict
[ -z "$(git status --porcelain)" ] || fail "git status: $(git status --porcelain)"
cd ..

git clone -q "file://$PWD/own" "$LOCAL/clone"
git clone -q "$LOCAL/clone" back
git -C back fsck --strict
git -C back gc -q
[ "$(git -C own rev-parse HEAD)" = "$(git -C back rev-parse HEAD)" ] || fail "another commit came back"
diff -r --no-dereference --exclude=.git own back
# A clone of a local path links objects; git copies where it cannot, unless told
# to link.
git clone -q own copied
git -C copied fsck --strict
refused 'failed to create link' git clone -q --local own linked
git -C own worktree add -q ../second side
git -C second status --porcelain
