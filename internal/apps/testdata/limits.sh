# What S3 has no form for is refused, with an errno that programs know.
needs /usr/bin/python3 setfattr
echo data >file
refused 'Operation not permitted' ln file second
refused 'Operation not permitted' mkfifo pipe
refused 'Operation not permitted' mknod device c 1 3
refused 'Operation not permitted' /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
refused 'Invalid or incomplete multibyte' touch "$(printf 'not-utf8-\377')"
refused 'Invalid argument' touch "$(printf 'control\001')"
refused 'File name too long' touch "$(printf 'x%.0s' $(seq 256))"
refused 'No space left' setfattr -n user.big -v "$(head -c 3000 /dev/zero | tr '\0' v)" file
refused 'Operation not supported' setfattr -n trusted.x -v y file
refused 'unsupported' fallocate --punch-hole -o 0 -l 2 file
[ "$(ls)" = file ] || fail "left behind: $(ls)"
[ "$(cat file)" = data ] || fail "the file changed"
