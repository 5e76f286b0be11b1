/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Steers new inbound TCP connections of a network namespace to a listener of
 * ours in the same namespace. The kernel runs the program whenever it looks
 * for a listening socket, so an established connection never comes here, and
 * no address is rewritten: the accepted socket's own address is the one the
 * visitor meant.
 *
 * The program never refuses anything. Whatever is missing (an armed key, a
 * live traffic process, a listener), the kernel goes on to the socket it would
 * have found without us.
 */
#include "abi.h"

#define MAX_KEYS 256
#define LOOPBACK4 bpf_htonl(0x7f000000)
#define LOOPBACK4_MASK bpf_htonl(0xff000000)
#define MAPPED_PREFIX bpf_htonl(0x0000ffff)

/* What is stolen. Written out in key.go as well; no padding. */
struct key {
	__u32 addr[4];	/* network byte order; IPv4 in addr[0]; zero: any */
	__u16 port;	/* host byte order */
	__u8 family;	/* AF_INET or AF_INET6 */
	__u8 protocol;
};

/* What became of the lookups. Written out in stats.go as well. */
struct stats {
	__u64 stolen;		/* steered to our listener */
	__u64 self;		/* armed, but from the pod itself */
	__u64 stale;		/* armed, but nobody is there to serve it */
	__u64 no_listener;	/* armed, but the slot is empty */
	__u64 assign_error;	/* armed, but the kernel refused the socket */
	__u64 not_armed;	/* any other lookup of a TCP listener */
};

/* How old the beat may be, in nanoseconds. The loader may set it. */
const volatile __u64 stale_after_ns = 500000000;

/* key -> index into trivet_sockets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_KEYS);
	__type(key, struct key);
	__type(value, __u32);
} trivet_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} trivet_sockets SEC(".maps");

/* CLOCK_MONOTONIC, in nanoseconds, when the traffic process last said that it
 * serves. The loader replaces the map by one that all namespaces share. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} trivet_beat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stats);
} trivet_stats SEC(".maps");

/* One connection, in one form whatever the family. */
struct tuple {
	__u32 remote[4];
	struct key local;
};

static __always_inline int is_mapped(const __u32 *a)
{
	return a[0] == 0 && a[1] == 0 && a[2] == MAPPED_PREFIX;
}

static __always_inline void to_v4(__u32 *a, __u32 v4)
{
	a[0] = v4;
	a[1] = a[2] = a[3] = 0;
}

static __always_inline void read_tuple(const struct bpf_sk_lookup *ctx, struct tuple *t)
{
	t->local.port = ctx->local_port;
	t->local.protocol = ctx->protocol;
	t->local.family = ctx->family;
	if (ctx->family == AF_INET) {
		to_v4(t->remote, ctx->remote_ip4);
		to_v4(t->local.addr, ctx->local_ip4);
		return;
	}
	/* The IPv4 fields read as zero here: they must not be compared. */
	t->remote[0] = ctx->remote_ip6[0];
	t->remote[1] = ctx->remote_ip6[1];
	t->remote[2] = ctx->remote_ip6[2];
	t->remote[3] = ctx->remote_ip6[3];
	t->local.addr[0] = ctx->local_ip6[0];
	t->local.addr[1] = ctx->local_ip6[1];
	t->local.addr[2] = ctx->local_ip6[2];
	t->local.addr[3] = ctx->local_ip6[3];
	/* An IPv4 connection may be looked up under its mapped form; keys never
	 * have that form. */
	if (is_mapped(t->local.addr) && is_mapped(t->remote)) {
		t->local.family = AF_INET;
		to_v4(t->remote, t->remote[3]);
		to_v4(t->local.addr, t->local.addr[3]);
	}
}

static __always_inline int is_self(const struct tuple *t)
{
	const __u32 *r = t->remote, *l = t->local.addr;

	if (r[0] == l[0] && r[1] == l[1] && r[2] == l[2] && r[3] == l[3])
		return 1;
	return t->local.family == AF_INET &&
	       (r[0] & LOOPBACK4_MASK) == LOOPBACK4 &&
	       (l[0] & LOOPBACK4_MASK) == LOOPBACK4;
}

/* Exact address first, then any address. */
static __always_inline __u32 *find_slot(const struct tuple *t)
{
	struct key any = t->local;
	__u32 *slot = bpf_map_lookup_elem(&trivet_ports, &t->local);

	if (slot)
		return slot;
	to_v4(any.addr, 0);
	return bpf_map_lookup_elem(&trivet_ports, &any);
}

static __always_inline int is_beating(void)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&trivet_beat, &zero);
	__u64 then;
	__s64 age;

	if (!last)
		return 0;
	then = *(volatile __u64 *)last;
	if (then == 0)
		return 0;
	/* Signed: another processor may have written a beat that is younger than
	 * our clock. One from far in the future is no beat either: it would never
	 * grow old. */
	age = (__s64)(bpf_ktime_get_ns() - then);
	return age <= (__s64)stale_after_ns && age >= -(__s64)stale_after_ns;
}

SEC("sk_lookup")
int trivet_steal(struct bpf_sk_lookup *ctx)
{
	struct tuple t = {};
	struct bpf_sock *sk;
	struct stats *st;
	__u32 zero = 0, *slot;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	st = bpf_map_lookup_elem(&trivet_stats, &zero);
	if (!st)
		return SK_PASS;
	read_tuple(ctx, &t);

	slot = find_slot(&t);
	if (!slot) {
		__sync_fetch_and_add(&st->not_armed, 1);
		return SK_PASS;
	}
	if (is_self(&t)) {
		__sync_fetch_and_add(&st->self, 1);
		return SK_PASS;
	}
	if (!is_beating()) {
		__sync_fetch_and_add(&st->stale, 1);
		return SK_PASS;
	}
	sk = bpf_map_lookup_elem(&trivet_sockets, slot);
	if (!sk) {
		__sync_fetch_and_add(&st->no_listener, 1);
		return SK_PASS;
	}
	if (bpf_sk_assign(ctx, sk, 0))
		__sync_fetch_and_add(&st->assign_error, 1);
	else
		__sync_fetch_and_add(&st->stolen, 1);
	bpf_sk_release(sk);
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
