# zip writes a temporary archive and seeks back in it; updates replace it.
needs zip unzip
tree tree
(cd tree && zip -qry ../a.zip .)
unzip -tq a.zip
unzip -q a.zip -d out
diff -r --no-dereference tree out
echo changed >tree/a/b/text-7
(cd tree && zip -qry -u ../a.zip . -x large)
zip -qd a.zip large
unzip -tq a.zip
[ "$(unzip -p a.zip a/b/text-7)" = changed ] || fail "the update is not in the archive"
