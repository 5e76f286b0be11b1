package operatorapi

import (
	"encoding/base64"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// Bounds of one page: an answer stays well below the 4 MiB that gRPC takes,
// whatever the rows hold.
const (
	maxPageRows  = 1000
	maxPageBytes = 1 << 20
)

// page takes one page of rows, which come in the order of their keys. show
// says how a row is shown and whether the caller gets it at all.
func page[R any, M proto.Message](rows iter.Seq[R], req *operatorv1.Page, key func(R) string, show func(R) (M, bool)) (items []M, next string, err error) {
	after, err := base64.RawURLEncoding.DecodeString(req.GetToken())
	if err != nil {
		return nil, "", errs.New(codes.InvalidArgument, "BAD_PAGE_TOKEN", "page token %q is not one of this list", req.GetToken()).
			WithHint("send the next_page_token of the page before, or none")
	}
	limit := maxPageRows
	if n := int(req.GetSize()); n > 0 {
		limit = min(n, maxPageRows)
	}
	last, bytes := "", 0
	for row := range rows {
		k := key(row)
		if req.GetToken() != "" && k <= string(after) {
			continue
		}
		m, ok := show(row)
		if !ok {
			continue
		}
		size := proto.Size(m)
		if len(items) == limit || (len(items) > 0 && bytes+size > maxPageBytes) {
			return items, base64.RawURLEncoding.EncodeToString([]byte(last)), nil
		}
		items = append(items, m)
		last, bytes = k, bytes+size
	}
	return items, "", nil
}
