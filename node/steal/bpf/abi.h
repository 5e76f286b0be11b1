/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The part of the kernel's BPF interface that steal.bpf.c uses. It is written
 * out here, and not taken from the system's headers, so that the object's
 * bytes depend on the compiler alone: the headers differ between
 * distributions, and their types end up in the object's BTF.
 */
#ifndef TRIVET_STEAL_ABI_H
#define TRIVET_STEAL_ABI_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef long long __s64;

#define NULL ((void *)0)
#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htonl(x) __builtin_bswap32(x)
#else
#define bpf_htonl(x) (x)
#endif

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_SOCKMAP 15

#define SK_PASS 1

struct bpf_sock;

/* The context of an sk_lookup program. The kernel rewrites every access by its
 * offset; only whole 32-bit fields are read here. */
struct bpf_sk_lookup {
	__u64 sk;
	__u32 family;
	__u32 protocol;
	__u32 remote_ip4;	/* network byte order */
	__u32 remote_ip6[4];	/* network byte order */
	__u32 remote_port;	/* network byte order, in the lower half */
	__u32 local_ip4;	/* network byte order */
	__u32 local_ip6[4];	/* network byte order */
	__u32 local_port;	/* host byte order */
	__u32 ingress_ifindex;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_sk_release)(struct bpf_sock *sk) = (void *)86;
static long (*const bpf_sk_assign)(void *ctx, struct bpf_sock *sk, __u64 flags) = (void *)124;

#endif
