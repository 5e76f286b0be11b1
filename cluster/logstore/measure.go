package logstore

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Operations that write, as in the metrics.
const (
	opAppend = "append"
	opDelete = "delete"
	opStable = "stable"

	causeFull  = "full"
	causeOther = "other"
)

// measures counts what the store does.
type measures struct {
	seconds      *prometheus.HistogramVec
	size         prometheus.Histogram
	entries      prometheus.Counter
	errors       *prometheus.CounterVec
	hits, misses prometheus.Counter
	unreadable   prometheus.Counter

	mu sync.Mutex
	// mean is an exponentially weighted mean of the time of appends and stable
	// writes, last when it was updated; guarded by mu.
	mean time.Duration
	last time.Time
	// broken is the error of the newest write; guarded by mu.
	broken error
}

// weightOfLast is what part of the mean one write is. Twenty slow writes move
// it nearly all the way; one hiccup does not.
const weightOfLast = 0.15

func newMeasures() *measures {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "trivet_raft_log_" + name, Help: help})
	}
	m := &measures{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trivet_raft_log_write_seconds", Help: "Time of writes to the Raft log, sync included, by operation.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"op"}),
		size: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trivet_raft_log_write_bytes", Help: "Bytes of the entries of one write to the Raft log.",
			Buckets: prometheus.ExponentialBuckets(256, 4, 9),
		}),
		entries: counter("entries_written_total", "Entries written to the Raft log."),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_raft_log_write_errors_total", Help: "Writes to the Raft log that failed, by operation and whether the disk was full.",
		}, []string{"op", "cause"}),
		hits:       counter("cache_hits_total", "Entries read from memory."),
		misses:     counter("cache_misses_total", "Entries read from the disk."),
		unreadable: counter("unreadable_total", "Entries that could not be read or whose checksum did not match."),
	}
	for _, op := range []string{opAppend, opDelete, opStable} {
		for _, cause := range []string{causeFull, causeOther} {
			m.errors.WithLabelValues(op, cause)
		}
	}
	return m
}

// wrote notes the end of a write.
func (m *measures) wrote(op string, took time.Duration, err error) {
	m.seconds.WithLabelValues(op).Observe(took.Seconds())
	if err != nil {
		cause := causeOther
		if isFull(err) {
			cause = causeFull
		}
		m.errors.WithLabelValues(op, cause).Inc()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if op == opDelete {
		// How long that takes depends on how much is removed; and it may have room
		// where an append has none.
		return
	}
	m.broken = err
	m.last = time.Now()
	if m.mean == 0 {
		m.mean = took
		return
	}
	m.mean += time.Duration(weightOfLast * float64(took-m.mean))
}

// Stats are what the store knows of its writes.
type Stats struct {
	Kind Kind
	// MeanWrite is the weighted mean of the time of the newest writes, LastWrite
	// when the newest of them ended (zero: none yet).
	MeanWrite time.Duration
	LastWrite time.Time
	// CachedEntries and CachedBytes are held in memory.
	CachedEntries, CachedBytes int
	// LogBytes is the size of the log on disk, 0 when it is not known.
	LogBytes int64
	// FreeBytes of TotalBytes are free on the file system of the log; both 0
	// when it does not answer.
	FreeBytes, TotalBytes uint64
}

// Stats returns the figures of this moment.
func (s *Store) Stats() Stats {
	s.measures.mu.Lock()
	out := Stats{Kind: s.Kind(), MeanWrite: s.measures.mean, LastWrite: s.measures.last}
	s.measures.mu.Unlock()
	out.CachedEntries, out.CachedBytes = s.cache.size()
	sample := s.space.sample()
	out.FreeBytes, out.TotalBytes, out.LogBytes = sample.free, sample.total, sample.log
	return out
}

var (
	descCachedEntries = prometheus.NewDesc("trivet_raft_log_cache_entries", "Newest entries held in memory.", nil, nil)
	descCachedBytes   = prometheus.NewDesc("trivet_raft_log_cache_bytes", "Bytes of the entries held in memory.", nil, nil)
	descLogBytes      = prometheus.NewDesc("trivet_raft_log_bytes", "Size of the Raft log on disk.", []string{"kind"}, nil)
	descFreeBytes     = prometheus.NewDesc("trivet_raft_disk_free_bytes", "Bytes free on the file system of the Raft log.", nil, nil)
	descDiskBytes     = prometheus.NewDesc("trivet_raft_disk_bytes", "Size of the file system of the Raft log.", nil, nil)
	descMeanWrite     = prometheus.NewDesc("trivet_raft_log_write_mean_seconds", "Weighted mean of the time of the newest writes.", nil, nil)
)

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.seconds, m.size, m.entries, m.errors, m.hits, m.misses, m.unreadable}
}

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.measures.collectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{descCachedEntries, descCachedBytes, descLogBytes, descFreeBytes, descDiskBytes, descMeanWrite} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It does not touch the disk.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.measures.collectors() {
		c.Collect(ch)
	}
	st := s.Stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descCachedEntries, float64(st.CachedEntries))
	gauge(descCachedBytes, float64(st.CachedBytes))
	gauge(descLogBytes, float64(st.LogBytes), string(st.Kind))
	gauge(descFreeBytes, float64(st.FreeBytes))
	gauge(descDiskBytes, float64(st.TotalBytes))
	gauge(descMeanWrite, st.MeanWrite.Seconds())
}
