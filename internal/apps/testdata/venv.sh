# A virtual environment, and a wheel made here installed in it.
needs /usr/bin/python3
/usr/bin/python3 -m venv env
mkdir -p "$LOCAL/dist"
/usr/bin/python3 - "$LOCAL/dist" <<'PY'
import base64, hashlib, sys, zipfile
files = {
    "hello_mount/__init__.py": "def main():\n    print('hello from the mount')\n",
    "hello_mount-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: hello-mount\nVersion: 1.0\n",
    "hello_mount-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "hello_mount-1.0.dist-info/entry_points.txt": "[console_scripts]\nhello-mount = hello_mount:main\n",
}
for i in range(40):
    files[f"hello_mount/module_{i}.py"] = f"value = {i}\n" * 50
record = ""
with zipfile.ZipFile(sys.argv[1] + "/hello_mount-1.0-py3-none-any.whl", "w") as z:
    for name, text in files.items():
        z.writestr(name, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    z.writestr("hello_mount-1.0.dist-info/RECORD", record + "hello_mount-1.0.dist-info/RECORD,,\n")
PY
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1
env/bin/pip install -q --no-index --find-links "$LOCAL/dist" hello-mount
[ "$(env/bin/hello-mount)" = 'hello from the mount' ] || fail "the installed program"
env/bin/python -c 'import hello_mount.module_39 as m; assert m.value == 39'
env/bin/pip uninstall -q -y hello-mount
if env/bin/python -c 'import hello_mount' 2>/dev/null; then fail "it is still installed"; fi
