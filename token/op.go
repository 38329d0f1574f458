package token

import "strings"

// Op is the S3 direction of a transfer, seen from the client.
type Op string

const (
	OpGet Op = "GET"
	OpPut Op = "PUT"
)

// ParseOp reads an operation in any case.
func ParseOp(s string) (Op, error) {
	switch op := Op(strings.ToUpper(s)); op {
	case OpGet, OpPut:
		return op, nil
	}
	return "", syntax(HeaderOp, "neither GET nor PUT")
}
