package token

// QuoteETag puts an ETag into quotes unless it has them.
func QuoteETag(etag string) string {
	if UnquoteETag(etag) != etag {
		return etag
	}
	return `"` + etag + `"`
}

// UnquoteETag strips one pair of quotes.
func UnquoteETag(etag string) string {
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		return etag[1 : len(etag)-1]
	}
	return etag
}
