package gateway

import (
	"bufio"
	"io"
	"os"
)

// sendfileMin is the size, in bytes, from which a body is worth a system call
// of its own after the header.
const sendfileMin = 16 << 10

// fileBody is part of a file as the body of an answer. The server sends such
// a body to its end, so it must not be longer than the Content-Length says,
// however the file may have grown.
type fileBody struct {
	file *os.File
	part io.LimitedReader // of file, from its present position
}

// newFileBody returns n bytes of f from start on and takes f over.
func newFileBody(f *os.File, start, n int64) (*fileBody, error) {
	if _, err := f.Seek(start, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return &fileBody{file: f, part: io.LimitedReader{R: f, N: n}}, nil
}

func (b *fileBody) Read(p []byte) (int, error) { return b.part.Read(p) }

func (b *fileBody) Close() error { return b.file.Close() }

// WriteTo lets the kernel copy: a bufio.Writer that is empty hands a limited
// file on to its connection, which uses sendfile.
func (b *fileBody) WriteTo(w io.Writer) (int64, error) {
	if bw, ok := w.(*bufio.Writer); ok && b.part.N >= sendfileMin {
		if err := bw.Flush(); err != nil {
			return 0, err
		}
		return bw.ReadFrom(&b.part)
	}
	// The plain reader keeps io.Copy from coming back here.
	return io.Copy(w, struct{ io.Reader }{&b.part})
}
