/*
 * A stand-in for libibverbs.so.1, compiled from the real header: an RC device
 * whose queue pairs reach each other within the process. It counts its objects,
 * writes each call to a log and fails on demand; see control.h.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "control.h"

#define API __attribute__((visibility("default")))

enum { MAX_QP = 256, MAX_MR = 256, MAX_EVENTS = 256, MAX_SGE = 8, MAX_WR = 1024, MAX_CQE = 4096 };

static struct control *ctl;
static int log_fd = -1;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;  /* something to send */
static pthread_cond_t acked = PTHREAD_COND_INITIALIZER; /* an event was acknowledged */

static void note(const char *fmt, ...)
{
	char line[512];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	line[n++] = '\n';
	if (write(log_fd, line, n) != n)
		abort();
}

static void live(int kind, int d) { __atomic_add_fetch(&ctl->live[kind], d, __ATOMIC_SEQ_CST); }
static void unacked(int d) { __atomic_add_fetch(&ctl->unacked, d, __ATOMIC_SEQ_CST); }

/* The errno with which the call is to fail, or 0. */
static int fault(const char *op)
{
	if (__atomic_load_n(&ctl->fail_nth, __ATOMIC_SEQ_CST) == 0 || strcmp(op, ctl->fail_op))
		return 0;
	return __atomic_sub_fetch(&ctl->fail_nth, 1, __ATOMIC_SEQ_CST) == 0 ? ctl->fail_errno : 0;
}

#define BEGIN_PTR do { note("%s", __func__); int e_ = fault(__func__); if (e_) { errno = e_; return NULL; } } while (0)
#define BEGIN_INT do { note("%s", __func__); int e_ = fault(__func__); if (e_) return e_; } while (0)
#define BEGIN_NEG do { int e_ = fault(__func__); if (e_) { errno = e_; return -1; } } while (0)

struct channel;
struct cq {
	struct ibv_cq v;
	struct channel *ch;
	struct ibv_wc *ring;
	int head, count, armed, overrun, users, unacked;
};

struct channel {
	struct ibv_comp_channel v;
	struct cq *queue[MAX_EVENTS];
	int count;
};

struct context {
	struct ibv_context v;
	int index; /* of the device */
	struct ibv_async_event queue[MAX_EVENTS];
	int count;
	struct context *next;
};

struct mr {
	struct ibv_mr v;
	int access;
};

struct wqe {
	uint64_t id;
	int opcode, signaled, nsge;
	uint32_t imm, rkey;
	uint64_t remote;
	struct ibv_sge sge[MAX_SGE];
	int64_t deadline; /* of the retries, 0 before the first try */
	int rnr;
};

struct qp {
	struct ibv_qp v;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	int state;
	struct wqe *sq, *rq;
	int sq_head, sq_count, rq_head, rq_count;
};

struct pd {
	struct ibv_pd v;
	int users;
};

static struct context *contexts;
static struct qp *qps[MAX_QP];
static struct mr *mrs[MAX_MR];
static uint32_t next_qpn = 0x11, next_key = 0x1000;

/* Devices: RoCE with a mixed GID table, InfiniBand with two ports, iWARP. */
static struct ibv_device devices[] = {
	{ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "fake0" },
	{ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "fakeib1" },
	{ .node_type = IBV_NODE_RNIC, .transport_type = IBV_TRANSPORT_IWARP, .name = "fakewarp2" },
};
enum { NUM_DEVICES = 3 };

static const struct { int device; struct ibv_gid_entry e; } gids[] = {
	{ 0, { .gid.raw = { 0xfe, 0x80, [8] = 2, [15] = 1 }, .gid_index = 0, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V1, .ndev_ifindex = 1 } },
	{ 0, { .gid.raw = { 0xfe, 0x80, [8] = 2, [15] = 1 }, .gid_index = 1, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2, .ndev_ifindex = 1 } },
	{ 0, { .gid.raw = { [10] = 0xff, 0xff, 10, 77, 0, 1 }, .gid_index = 3, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2, .ndev_ifindex = 1 } },
	{ 1, { .gid.raw = { 0xfe, 0x80, [15] = 7 }, .gid_index = 0, .port_num = 1, .gid_type = IBV_GID_TYPE_IB } },
	{ 1, { .gid.raw = { 0xfe, 0x80, [15] = 8 }, .gid_index = 0, .port_num = 2, .gid_type = IBV_GID_TYPE_IB } },
};
enum { NUM_GIDS = sizeof(gids) / sizeof(gids[0]), GID_TBL_LEN = 8 };

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int ports_of(struct ibv_context *c) { return c->device == &devices[1] ? 2 : 1; }

/* ---- events; all under mu ---- */

static void signal_fd(int fd)
{
	uint64_t one = 1;
	if (write(fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static int take_fd(int fd)
{
	uint64_t v;
	return read(fd, &v, sizeof(v)) == sizeof(v) ? 0 : -1;
}

static void raise_async(struct context *c, struct ibv_async_event e)
{
	if (c->count == MAX_EVENTS)
		abort();
	c->queue[c->count++] = e;
	signal_fd(c->v.async_fd);
}

static void push_wc(struct cq *q, struct ibv_wc wc)
{
	if (q->count == q->v.cqe) {
		if (!q->overrun) {
			struct ibv_async_event e = { .event_type = IBV_EVENT_CQ_ERR };
			e.element.cq = &q->v;
			raise_async((struct context *)q->v.context, e);
		}
		q->overrun = 1;
		return;
	}
	q->ring[(q->head + q->count++) % q->v.cqe] = wc;
	if (q->armed && q->ch) {
		q->armed = 0;
		if (q->ch->count == MAX_EVENTS)
			abort();
		q->ch->queue[q->ch->count++] = q;
		signal_fd(q->ch->v.fd);
	}
}

/* ---- the RC engine; all under mu ---- */

static struct qp *find_qp(uint32_t n)
{
	for (int i = 0; i < MAX_QP; i++)
		if (qps[i] && qps[i]->v.qp_num == n)
			return qps[i];
	return NULL;
}

static struct mr *find_mr(struct ibv_pd *pd, uint32_t key, uint64_t addr, uint64_t len, int access)
{
	for (int i = 0; i < MAX_MR; i++) {
		struct mr *m = mrs[i];
		if (!m || m->v.lkey != key)
			continue;
		uint64_t base = (uintptr_t)m->v.addr;
		if (m->v.pd != pd || (m->access & access) != access || addr < base || len > m->v.length || addr - base > m->v.length - len)
			return NULL;
		return m;
	}
	return NULL;
}

/* Only wr_id, status, qp_num and vendor_err of a failed completion mean anything. */
static struct ibv_wc failed(struct qp *q, uint64_t id, int status)
{
	struct ibv_wc wc;
	memset(&wc, 0xee, sizeof(wc));
	wc.wr_id = id;
	wc.status = status;
	wc.qp_num = q->v.qp_num;
	wc.vendor_err = status == IBV_WC_WR_FLUSH_ERR ? 0 : 0x51;
	return wc;
}

static void flush_sends(struct qp *q)
{
	for (; q->sq_count; q->sq_count--, q->sq_head++)
		push_wc((struct cq *)q->init.send_cq, failed(q, q->sq[q->sq_head % q->init.cap.max_send_wr].id, IBV_WC_WR_FLUSH_ERR));
}

static void flush(struct qp *q)
{
	flush_sends(q);
	for (; q->rq_count; q->rq_count--, q->rq_head++)
		push_wc((struct cq *)q->init.recv_cq, failed(q, q->rq[q->rq_head % q->init.cap.max_recv_wr].id, IBV_WC_WR_FLUSH_ERR));
}

static void to_error(struct qp *q)
{
	q->state = IBV_QPS_ERR;
	flush(q);
}

static void pop_sq(struct qp *q)
{
	q->sq_head++;
	q->sq_count--;
}

static void fail_send(struct qp *q, struct wqe *w, int status)
{
	push_wc((struct cq *)q->init.send_cq, failed(q, w->id, status));
	pop_sq(q);
	to_error(q);
}

static int64_t ack_timeout(struct qp *q) { return 4096LL << q->a.timeout; }

/* Tries the head of the send queue; 1 when it left the queue. */
static int try_send(struct qp *q)
{
	struct wqe *w = &q->sq[q->sq_head % q->init.cap.max_send_wr];
	struct qp *peer = find_qp(q->a.dest_qp_num);
	uint64_t len = 0;

	for (int i = 0; i < w->nsge; i++)
		len += w->sge[i].length;
	for (int i = 0; i < w->nsge; i++)
		if (w->sge[i].length && !find_mr(q->v.pd, w->sge[i].lkey, w->sge[i].addr, w->sge[i].length, 0)) {
			fail_send(q, w, IBV_WC_LOC_PROT_ERR);
			return 1;
		}
	if (!w->deadline)
		w->deadline = now() + (q->a.retry_cnt + 1) * ack_timeout(q);
	if (!peer || (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS) || peer->a.dest_qp_num != q->v.qp_num ||
	    peer->a.rq_psn != q->a.sq_psn) {
		if (now() < w->deadline)
			return 0;
		fail_send(q, w, IBV_WC_RETRY_EXC_ERR);
		return 1;
	}
	/* The responder counts packets: a full one must be as long as its own MTU. */
	uint64_t packet = 128u << q->a.path_mtu, expect = 128u << peer->a.path_mtu;
	if (packet != expect && len > (packet < expect ? packet : expect)) {
		fail_send(q, w, IBV_WC_REM_INV_REQ_ERR);
		to_error(peer);
		return 1;
	}
	struct mr *m = NULL;
	if (len) {
		m = find_mr(peer->v.pd, w->rkey, w->remote, len, IBV_ACCESS_REMOTE_WRITE);
		if (!m || !(peer->a.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
			fail_send(q, w, IBV_WC_REM_ACCESS_ERR);
			to_error(peer);
			return 1;
		}
	}
	int imm = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	if (imm && !peer->rq_count) {
		if (q->a.rnr_retry == 7 || w->rnr++ < q->a.rnr_retry)
			return 0;
		fail_send(q, w, IBV_WC_RNR_RETRY_EXC_ERR);
		return 1;
	}
	uint64_t at = w->remote;
	for (int i = 0; i < w->nsge; i++) {
		memcpy((void *)(uintptr_t)at, (void *)(uintptr_t)w->sge[i].addr, w->sge[i].length);
		at += w->sge[i].length;
	}
	struct ibv_wc wc;
	if (imm) {
		struct wqe *r = &peer->rq[peer->rq_head++ % peer->init.cap.max_recv_wr];
		peer->rq_count--;
		memset(&wc, 0, sizeof(wc));
		wc.wr_id = r->id;
		wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		wc.byte_len = len;
		wc.imm_data = w->imm;
		wc.qp_num = peer->v.qp_num;
		wc.src_qp = q->v.qp_num;
		wc.wc_flags = IBV_WC_WITH_IMM | IBV_WC_GRH; /* as Soft-RoCE does */
		push_wc((struct cq *)peer->init.recv_cq, wc);
	}
	if (w->signaled) {
		memset(&wc, 0, sizeof(wc));
		wc.wr_id = w->id;
		wc.opcode = IBV_WC_RDMA_WRITE;
		wc.byte_len = len;
		wc.qp_num = q->v.qp_num;
		push_wc((struct cq *)q->init.send_cq, wc);
	}
	pop_sq(q);
	return 1;
}

static void *engine(void *arg)
{
	int seq = 0;

	(void)arg;
	pthread_mutex_lock(&mu);
	for (;;) {
		for (int i = 0; i < MAX_QP; i++)
			while (qps[i] && qps[i]->state == IBV_QPS_RTS && qps[i]->sq_count && try_send(qps[i]))
				;
		int s = __atomic_load_n(&ctl->event_seq, __ATOMIC_SEQ_CST);
		if (s != seq) {
			seq = s;
			struct ibv_async_event e = { .event_type = ctl->event_type };
			e.element.port_num = ctl->event_port;
			for (struct context *c = contexts; c; c = c->next)
				raise_async(c, e);
		}
		struct timespec t;
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += 1000000;
		if (t.tv_nsec >= 1000000000) {
			t.tv_sec++;
			t.tv_nsec -= 1000000000;
		}
		pthread_cond_timedwait(&work, &mu, &t);
	}
	return NULL;
}

/* ---- fast path, behind the context's ops ---- */

static int poll_cq(struct ibv_cq *v, int n, struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)v;
	int i;

	BEGIN_NEG;
	pthread_mutex_lock(&mu);
	for (i = 0; i < n && q->count; i++, q->count--)
		wc[i] = q->ring[q->head++ % q->v.cqe];
	pthread_mutex_unlock(&mu);
	return i;
}

static int req_notify_cq(struct ibv_cq *v, int solicited)
{
	BEGIN_INT;
	if (solicited)
		abort();
	pthread_mutex_lock(&mu);
	((struct cq *)v)->armed = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

static int post_send(struct ibv_qp *v, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)v;
	unsigned char *imm = (unsigned char *)&wr->imm_data;

	*bad = wr;
	note("post_send id=%llx opcode=%d flags=%x imm=%02x%02x%02x%02x remote=%llx rkey=%x sges=%d", (unsigned long long)wr->wr_id,
	     wr->opcode, wr->send_flags, imm[0], imm[1], imm[2], imm[3], (unsigned long long)wr->wr.rdma.remote_addr,
	     wr->wr.rdma.rkey, wr->num_sge);
	int e = fault("post_send");
	if (e)
		return e;
	if (wr->next)
		abort();
	if (wr->num_sge > (int)q->init.cap.max_send_sge || wr->num_sge > MAX_SGE)
		return EINVAL;
	pthread_mutex_lock(&mu);
	if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_ERR) {
		pthread_mutex_unlock(&mu);
		return EINVAL;
	}
	if (q->sq_count == (int)q->init.cap.max_send_wr) {
		pthread_mutex_unlock(&mu);
		return ENOMEM;
	}
	struct wqe *w = &q->sq[(q->sq_head + q->sq_count++) % q->init.cap.max_send_wr];
	memset(w, 0, sizeof(*w));
	w->id = wr->wr_id;
	w->opcode = wr->opcode;
	w->signaled = q->init.sq_sig_all || wr->send_flags & IBV_SEND_SIGNALED;
	w->nsge = wr->num_sge;
	memcpy(w->sge, wr->sg_list, wr->num_sge * sizeof(struct ibv_sge));
	w->imm = wr->imm_data;
	w->remote = wr->wr.rdma.remote_addr;
	w->rkey = wr->wr.rdma.rkey;
	if (q->state == IBV_QPS_ERR)
		flush_sends(q);
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return 0;
}

static int post_recv(struct ibv_qp *v, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *q = (struct qp *)v;

	*bad = wr;
	BEGIN_INT;
	if (wr->next)
		abort();
	if (wr->num_sge > (int)q->init.cap.max_recv_sge)
		return EINVAL;
	pthread_mutex_lock(&mu);
	if (q->state == IBV_QPS_RESET) {
		pthread_mutex_unlock(&mu);
		return EINVAL;
	}
	if (q->rq_count == (int)q->init.cap.max_recv_wr) {
		pthread_mutex_unlock(&mu);
		return ENOMEM;
	}
	/* In ERR it stays until the next transition, as with Soft-RoCE of Linux 6.1. */
	q->rq[(q->rq_head + q->rq_count++) % q->init.cap.max_recv_wr].id = wr->wr_id;
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return 0;
}

/* ---- exported ---- */

API struct ibv_device **ibv_get_device_list(int *n)
{
	BEGIN_PTR;
	if (ctl->no_devices) {
		errno = ctl->no_devices;
		return NULL;
	}
	struct ibv_device **l = calloc(NUM_DEVICES + 1, sizeof(*l));
	for (int i = 0; i < NUM_DEVICES; i++)
		l[i] = &devices[i];
	*n = NUM_DEVICES;
	live(LIVE_LIST, 1);
	return l;
}

API void ibv_free_device_list(struct ibv_device **l)
{
	free(l);
	live(LIVE_LIST, -1);
}

API const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

API struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	BEGIN_PTR;
	struct context *c = calloc(1, sizeof(*c));
	c->index = d - devices;
	c->v.device = d;
	c->v.ops.poll_cq = poll_cq;
	c->v.ops.req_notify_cq = req_notify_cq;
	c->v.ops.post_send = post_send;
	c->v.ops.post_recv = post_recv;
	c->v.num_comp_vectors = 3;
	c->v.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	pthread_mutex_lock(&mu);
	c->next = contexts;
	contexts = c;
	pthread_mutex_unlock(&mu);
	live(LIVE_CONTEXT, 1);
	return &c->v;
}

API int ibv_close_device(struct ibv_context *v)
{
	BEGIN_INT;
	pthread_mutex_lock(&mu);
	for (struct context **p = &contexts; *p; p = &(*p)->next)
		if (&(*p)->v == v) {
			*p = (*p)->next;
			break;
		}
	pthread_mutex_unlock(&mu);
	close(v->async_fd);
	free(v);
	live(LIVE_CONTEXT, -1);
	return 0;
}

API int ibv_get_async_event(struct ibv_context *v, struct ibv_async_event *e)
{
	struct context *c = (struct context *)v;

	pthread_mutex_lock(&mu);
	int rc = take_fd(c->v.async_fd);
	if (!rc) {
		*e = c->queue[0];
		memmove(c->queue, c->queue + 1, --c->count * sizeof(*e));
		unacked(1);
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

API void ibv_ack_async_event(struct ibv_async_event *e)
{
	(void)e;
	unacked(-1);
}

API int ibv_query_device(struct ibv_context *v, struct ibv_device_attr *a)
{
	BEGIN_INT;
	memset(a, 0, sizeof(*a));
	strcpy(a->fw_ver, "1.2.3");
	a->max_mr_size = 1ULL << 40;
	a->max_qp = MAX_QP;
	a->max_qp_wr = MAX_WR;
	a->max_sge = MAX_SGE;
	a->max_cq = 1001;
	a->max_cqe = MAX_CQE;
	a->max_mr = MAX_MR;
	a->max_pd = 1002;
	a->phys_port_cnt = ports_of(v);
	return 0;
}

/* Ends where the structure that the exported symbol takes ends. */
API int ibv_query_port(struct ibv_context *v, uint8_t port, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr a = { 0 };
	int index = ((struct context *)v)->index;

	BEGIN_INT;
	if (port < 1 || port > ports_of(v))
		return EINVAL;
	a.state = port == 2 ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	a.max_mtu = IBV_MTU_4096;
	a.active_mtu = index == 1 ? IBV_MTU_2048 : IBV_MTU_1024;
	a.gid_tbl_len = GID_TBL_LEN;
	a.max_msg_sz = 1u << 31;
	a.lid = index == 1 ? 0x77 : 0;
	a.link_layer = index == 1 ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	memcpy(out, &a, offsetof(struct ibv_port_attr, port_cap_flags2));
	return 0;
}

API int ibv_query_gid(struct ibv_context *v, uint8_t port, int index, union ibv_gid *gid)
{
	BEGIN_NEG;
	memset(gid, 0, sizeof(*gid));
	for (int i = 0; i < NUM_GIDS; i++)
		if (gids[i].device == ((struct context *)v)->index && gids[i].e.port_num == port && (int)gids[i].e.gid_index == index)
			*gid = gids[i].e.gid;
	return 0;
}

API ssize_t _ibv_query_gid_table(struct ibv_context *v, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	size_t n = 0;

	int err = ctl->no_gid_table ? ctl->no_gid_table : fault(__func__);
	if (err)
		return -err;
	if (flags || size != sizeof(*e))
		return -EINVAL;
	for (int i = 0; i < NUM_GIDS && n < max; i++)
		if (gids[i].device == ((struct context *)v)->index)
			e[n++] = gids[i].e;
	return n;
}

API struct ibv_pd *ibv_alloc_pd(struct ibv_context *v)
{
	BEGIN_PTR;
	struct pd *p = calloc(1, sizeof(*p));
	p->v.context = v;
	live(LIVE_PD, 1);
	return &p->v;
}

API int ibv_dealloc_pd(struct ibv_pd *v)
{
	BEGIN_INT;
	if (((struct pd *)v)->users)
		return EBUSY;
	free(v);
	live(LIVE_PD, -1);
	return 0;
}

API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	BEGIN_PTR;
	if (access & IBV_ACCESS_REMOTE_WRITE && !(access & IBV_ACCESS_LOCAL_WRITE)) {
		errno = EINVAL;
		return NULL;
	}
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_MR; i++)
		if (!mrs[i]) {
			struct mr *m = calloc(1, sizeof(*m));
			m->v.context = pd->context;
			m->v.pd = pd;
			m->v.addr = addr;
			m->v.length = len;
			m->v.lkey = m->v.rkey = next_key += 0x101;
			m->access = access;
			mrs[i] = m;
			((struct pd *)pd)->users++;
			live(LIVE_MR, 1);
			pthread_mutex_unlock(&mu);
			return &m->v;
		}
	pthread_mutex_unlock(&mu);
	errno = ENOMEM;
	return NULL;
}

API int ibv_dereg_mr(struct ibv_mr *v)
{
	BEGIN_INT;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_MR; i++)
		if (mrs[i] && &mrs[i]->v == v)
			mrs[i] = NULL;
	((struct pd *)v->pd)->users--;
	pthread_mutex_unlock(&mu);
	free(v);
	live(LIVE_MR, -1);
	return 0;
}

API struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *v)
{
	BEGIN_PTR;
	struct channel *c = calloc(1, sizeof(*c));
	c->v.context = v;
	c->v.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	live(LIVE_CHANNEL, 1);
	return &c->v;
}

API int ibv_destroy_comp_channel(struct ibv_comp_channel *v)
{
	BEGIN_INT;
	if (v->refcnt)
		return EBUSY;
	close(v->fd);
	free(v);
	live(LIVE_CHANNEL, -1);
	return 0;
}

API struct ibv_cq *ibv_create_cq(struct ibv_context *v, int cqe, void *cq_context, struct ibv_comp_channel *ch, int vector)
{
	BEGIN_PTR;
	if (cqe < 1 || cqe > MAX_CQE || vector < 0 || vector >= v->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	int depth = 1; /* devices round up */
	while (depth < cqe)
		depth *= 2;
	struct cq *q = calloc(1, sizeof(*q));
	q->v.context = v;
	q->v.channel = ch;
	q->v.cq_context = cq_context;
	q->v.cqe = depth;
	q->ring = calloc(depth, sizeof(*q->ring));
	q->ch = (struct channel *)ch;
	if (ch) {
		pthread_mutex_lock(&mu);
		ch->refcnt++;
		pthread_mutex_unlock(&mu);
	}
	live(LIVE_CQ, 1);
	return &q->v;
}

API int ibv_destroy_cq(struct ibv_cq *v)
{
	struct cq *q = (struct cq *)v;

	BEGIN_INT;
	pthread_mutex_lock(&mu);
	if (q->users) {
		pthread_mutex_unlock(&mu);
		return EBUSY;
	}
	if (q->ch) {
		int kept = 0;
		for (int i = 0; i < q->ch->count; i++) {
			if (q->ch->queue[i] == q)
				take_fd(q->ch->v.fd);
			else
				q->ch->queue[kept++] = q->ch->queue[i];
		}
		q->ch->count = kept;
		while (q->unacked)
			pthread_cond_wait(&acked, &mu);
		q->ch->v.refcnt--;
	}
	pthread_mutex_unlock(&mu);
	free(q->ring);
	free(q);
	live(LIVE_CQ, -1);
	return 0;
}

API int ibv_get_cq_event(struct ibv_comp_channel *v, struct ibv_cq **cq, void **cq_context)
{
	struct channel *c = (struct channel *)v;

	BEGIN_NEG;
	pthread_mutex_lock(&mu);
	int rc = take_fd(c->v.fd);
	if (!rc) {
		struct cq *q = c->queue[0];
		memmove(c->queue, c->queue + 1, --c->count * sizeof(q));
		q->unacked++;
		unacked(1);
		*cq = &q->v;
		*cq_context = q->v.cq_context;
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

API void ibv_ack_cq_events(struct ibv_cq *v, unsigned int n)
{
	pthread_mutex_lock(&mu);
	((struct cq *)v)->unacked -= n;
	unacked(-(int)n);
	pthread_cond_broadcast(&acked);
	pthread_mutex_unlock(&mu);
}

API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	note("%s send_wr=%u recv_wr=%u send_sge=%u recv_sge=%u inline=%u sig_all=%d type=%d", __func__, init->cap.max_send_wr,
	     init->cap.max_recv_wr, init->cap.max_send_sge, init->cap.max_recv_sge, init->cap.max_inline_data, init->sq_sig_all,
	     init->qp_type);
	int e = fault(__func__);
	if (!e && (init->cap.max_send_wr > MAX_WR || init->cap.max_recv_wr > MAX_WR || init->cap.max_send_sge > MAX_SGE))
		e = EINVAL;
	if (e) {
		errno = e;
		return NULL;
	}
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_QP; i++)
		if (!qps[i]) {
			struct qp *q = calloc(1, sizeof(*q));
			q->v.context = pd->context;
			q->v.pd = pd;
			q->v.qp_num = next_qpn++;
			q->v.qp_type = init->qp_type;
			q->init = *init;
			q->sq = calloc(init->cap.max_send_wr + 1, sizeof(*q->sq));
			q->rq = calloc(init->cap.max_recv_wr + 1, sizeof(*q->rq));
			qps[i] = q;
			((struct pd *)pd)->users++;
			((struct cq *)init->send_cq)->users++;
			((struct cq *)init->recv_cq)->users++;
			live(LIVE_QP, 1);
			pthread_mutex_unlock(&mu);
			return &q->v;
		}
	pthread_mutex_unlock(&mu);
	errno = ENOMEM;
	return NULL;
}

API int ibv_destroy_qp(struct ibv_qp *v)
{
	struct qp *q = (struct qp *)v;

	BEGIN_INT;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_QP; i++)
		if (qps[i] == q)
			qps[i] = NULL;
	((struct pd *)v->pd)->users--;
	((struct cq *)q->init.send_cq)->users--;
	((struct cq *)q->init.recv_cq)->users--;
	pthread_mutex_unlock(&mu);
	free(q->sq);
	free(q->rq);
	free(q);
	live(LIVE_QP, -1);
	return 0;
}

enum {
	M_INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	M_RTR = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	M_RTS = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static const struct { int from, to, required, optional; } transitions[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, M_INIT, 0 },
	{ IBV_QPS_INIT, IBV_QPS_INIT, 0, M_INIT },
	{ IBV_QPS_INIT, IBV_QPS_RTR, M_RTR, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	{ IBV_QPS_RTR, IBV_QPS_RTS, M_RTS, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER },
};

static int allowed(int from, int to, int mask)
{
	mask &= ~IBV_QP_STATE;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return mask == 0;
	for (size_t i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++)
		if (transitions[i].from == from && transitions[i].to == to)
			return (mask & transitions[i].required) == transitions[i].required &&
			       !(mask & ~(transitions[i].required | transitions[i].optional));
	return 0;
}

API int ibv_modify_qp(struct ibv_qp *v, struct ibv_qp_attr *a, int mask)
{
	struct qp *q = (struct qp *)v;
	const uint8_t *g = a->ah_attr.grh.dgid.raw;

	note("%s mask=%x state=%d access=%x pkey=%u port=%u mtu=%d dest=%x rq_psn=%x sq_psn=%x rd=%u dest_rd=%u rnr_timer=%u timeout=%u"
	     " retry=%u rnr=%u global=%u dgid=%02x..%02x sgid_index=%u hop=%u tclass=%u dlid=%x sl=%u path_bits=%u ah_port=%u",
	     __func__, mask, a->qp_state, a->qp_access_flags, a->pkey_index, a->port_num, a->path_mtu, a->dest_qp_num, a->rq_psn,
	     a->sq_psn, a->max_rd_atomic, a->max_dest_rd_atomic, a->min_rnr_timer, a->timeout, a->retry_cnt, a->rnr_retry,
	     a->ah_attr.is_global, g[0], g[15], a->ah_attr.grh.sgid_index, a->ah_attr.grh.hop_limit, a->ah_attr.grh.traffic_class,
	     a->ah_attr.dlid, a->ah_attr.sl, a->ah_attr.src_path_bits, a->ah_attr.port_num);
	int e = fault(__func__);
	if (e)
		return e;
	pthread_mutex_lock(&mu);
	int to = mask & IBV_QP_STATE ? (int)a->qp_state : q->state;
	if (!allowed(q->state, to, mask)) {
		pthread_mutex_unlock(&mu);
		return EINVAL;
	}
	if ((mask & IBV_QP_PORT && (a->port_num < 1 || a->port_num > ports_of(v->context))) ||
	    (mask & IBV_QP_PATH_MTU && (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096))) {
		pthread_mutex_unlock(&mu);
		return EINVAL;
	}
	if (mask & IBV_QP_PATH_MTU)
		q->a.path_mtu = a->path_mtu;
	if (mask & IBV_QP_ACCESS_FLAGS)
		q->a.qp_access_flags = a->qp_access_flags;
	if (mask & IBV_QP_DEST_QPN)
		q->a.dest_qp_num = a->dest_qp_num;
	if (mask & IBV_QP_RQ_PSN)
		q->a.rq_psn = a->rq_psn;
	if (mask & IBV_QP_SQ_PSN)
		q->a.sq_psn = a->sq_psn;
	if (mask & IBV_QP_TIMEOUT)
		q->a.timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		q->a.retry_cnt = a->retry_cnt;
	if (mask & IBV_QP_RNR_RETRY)
		q->a.rnr_retry = a->rnr_retry;
	q->state = to;
	if (to == IBV_QPS_ERR)
		flush(q);
	if (to == IBV_QPS_RESET) {
		/* Work requests and their completions vanish, as on a card. */
		q->sq_count = q->rq_count = 0;
		memset(&q->a, 0, sizeof(q->a));
	}
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return 0;
}

API int ibv_query_qp(struct ibv_qp *v, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct qp *q = (struct qp *)v;

	BEGIN_INT;
	if (!(mask & IBV_QP_STATE))
		return EINVAL;
	pthread_mutex_lock(&mu);
	*a = q->a;
	a->qp_state = q->state;
	*init = q->init;
	pthread_mutex_unlock(&mu);
	return 0;
}

__attribute__((constructor)) static void start(void)
{
	char path[4096];
	const char *dir = getenv("S3RDMAFS_FAKE_VERBS");
	pthread_t t;

	if (!dir)
		abort();
	snprintf(path, sizeof(path), "%s/control", dir);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		abort();
	ctl = mmap(NULL, sizeof(*ctl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ctl == MAP_FAILED)
		abort();
	close(fd);
	snprintf(path, sizeof(path), "%s/log", dir);
	log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (log_fd < 0 || pthread_create(&t, NULL, engine, NULL))
		abort();
}
