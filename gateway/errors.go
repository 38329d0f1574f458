package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/versity/versitygw/s3err"

	"s3rdmafs/rc"
)

// rcError turns an error of versitygw's into the answer that the same S3
// operation would have had. What is no S3 error is logged here: the client
// only hears of an internal error.
func (g *Gateway) rcError(err error) error {
	if err == nil {
		return nil
	}
	var known s3err.S3Error
	if errors.As(err, &known) {
		base := known.BaseError()
		return &rc.S3Error{Status: known.StatusCode(), Code: base.Code, Message: base.Description}
	}
	if errors.Is(err, rc.ErrUseHTTP) {
		return err
	}
	if own := (*rc.S3Error)(nil); errors.As(err, &own) {
		return own
	}
	g.log.Error("RC request failed in the backend", slog.Any("err", err))
	return &rc.S3Error{Status: http.StatusInternalServerError, Code: "InternalError", Message: "We encountered an internal error, please try again."}
}

// readable replaces an S3 error, whose text is XML, by its code and message.
func readable(err error) error {
	var known s3err.S3Error
	if !errors.As(err, &known) {
		return err
	}
	base := known.BaseError()
	return fmt.Errorf("%s: %s", base.Code, base.Description)
}

func accessDenied(message string) error {
	return &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied", Message: message}
}
