# Written by one process, read by another.
needs /usr/bin/python3
/usr/bin/python3 "$TESTDATA/checkpoint.py"
