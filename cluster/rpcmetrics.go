package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"trivet/internal/errs"
)

// rpcMetrics counts calls by rpc and code. Its labels are bounded: only rpcs
// that are registered here reach an interceptor.
type rpcMetrics struct {
	handled *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	open    *prometheus.GaugeVec
}

func newRPCMetrics() *rpcMetrics {
	return &rpcMetrics{
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_grpc_server_handled_total", Help: "Calls and streams that ended, by rpc and code.",
		}, []string{"service", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trivet_grpc_server_seconds", Help: "Time of unary calls, waits for the leader included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"service", "method"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_grpc_server_streams", Help: "Streams open now, by rpc.",
		}, []string{"service", "method"}),
	}
}

func (m *rpcMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.handled, m.seconds, m.open}
}

// unary is the outermost interceptor, so that refusals count too.
func (m *rpcMetrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	service, method := splitMethod(info.FullMethod)
	start := time.Now()
	resp, err := next(ctx, req)
	m.seconds.WithLabelValues(service, method).Observe(time.Since(start).Seconds())
	m.handled.WithLabelValues(service, method, errs.Code(err).String()).Inc()
	return resp, err
}

func (m *rpcMetrics) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	service, method := splitMethod(info.FullMethod)
	open := m.open.WithLabelValues(service, method)
	open.Inc()
	defer open.Dec()
	err := next(srv, ss)
	m.handled.WithLabelValues(service, method, errs.Code(err).String()).Inc()
	return err
}

// splitMethod splits "/package.Service/Method".
func splitMethod(full string) (service, method string) {
	service, method, _ = strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return service, method
}
