package gateway

import (
	"errors"
	"reflect"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api"
)

// fiberApp returns the fiber application of an S3 server. versitygw keeps it
// to itself and serves only addresses given as text, on which a caller can
// learn neither the port that it got nor serve a listener of its own.
func fiberApp(srv *s3api.S3ApiServer) (*fiber.App, error) {
	v := reflect.ValueOf(srv).Elem().FieldByName("app")
	if !v.IsValid() || v.Type() != reflect.TypeFor[*fiber.App]() || v.IsNil() {
		return nil, errors.New("gateway: this version of versitygw keeps its application elsewhere")
	}
	return (*fiber.App)(v.UnsafePointer()), nil
}
