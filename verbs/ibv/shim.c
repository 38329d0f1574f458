#include "shim.h"

#include <errno.h>
#include <stdio.h>

#if defined(__has_include) && !defined(S3RDMAFS_NO_VERBS_H)
#if __has_include(<infiniband/verbs.h>)
#define HAVE_VERBS_H 1
#endif
#endif

#ifdef HAVE_VERBS_H

#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/*
 * verbs.h replaces these names by inline functions that reach for symbols this
 * program is not linked with. The table below needs the plain exported ones.
 */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/* The ABI of libibverbs.so.1 on 64-bit machines never changes these. */
#if __SIZEOF_POINTER__ == 8
_Static_assert(sizeof(struct ibv_sge) == 16, "ibv_sge");
_Static_assert(sizeof(struct ibv_wc) == 48, "ibv_wc");
_Static_assert(sizeof(struct ibv_send_wr) == 128, "ibv_send_wr");
_Static_assert(sizeof(struct ibv_recv_wr) == 32, "ibv_recv_wr");
_Static_assert(sizeof(struct ibv_qp_attr) == 144, "ibv_qp_attr");
_Static_assert(sizeof(struct ibv_qp_init_attr) == 64, "ibv_qp_init_attr");
_Static_assert(sizeof(struct ibv_device_attr) == 232, "ibv_device_attr");
_Static_assert(offsetof(struct ibv_port_attr, link_layer) == 46, "ibv_port_attr");
_Static_assert(sizeof(struct shim_gid) == 32, "ibv_gid_entry");
#endif
_Static_assert(SHIM_EV_CQ_ERR == (int)IBV_EVENT_CQ_ERR, "event");
_Static_assert(SHIM_EV_QP_FATAL == (int)IBV_EVENT_QP_FATAL, "event");
_Static_assert(SHIM_EV_QP_REQ_ERR == (int)IBV_EVENT_QP_REQ_ERR, "event");
_Static_assert(SHIM_EV_QP_ACCESS_ERR == (int)IBV_EVENT_QP_ACCESS_ERR, "event");
_Static_assert(SHIM_EV_DEVICE_FATAL == (int)IBV_EVENT_DEVICE_FATAL, "event");
_Static_assert(SHIM_EV_PORT_ACTIVE == (int)IBV_EVENT_PORT_ACTIVE, "event");
_Static_assert(SHIM_EV_PORT_ERR == (int)IBV_EVENT_PORT_ERR, "event");
_Static_assert(SHIM_EV_GID_CHANGE == (int)IBV_EVENT_GID_CHANGE, "event");

/*
 * ibv_query_port fills a structure that ends before port_cap_flags2, hence the
 * void pointer; nothing behind that is used here. ibv_reg_mr takes no optional
 * access flags, none of which are used either.
 */
#define REQUIRED(X) \
	X(struct ibv_device **, ibv_get_device_list, (int *)) \
	X(void, ibv_free_device_list, (struct ibv_device **)) \
	X(const char *, ibv_get_device_name, (struct ibv_device *)) \
	X(struct ibv_context *, ibv_open_device, (struct ibv_device *)) \
	X(int, ibv_close_device, (struct ibv_context *)) \
	X(int, ibv_get_async_event, (struct ibv_context *, struct ibv_async_event *)) \
	X(void, ibv_ack_async_event, (struct ibv_async_event *)) \
	X(int, ibv_query_device, (struct ibv_context *, struct ibv_device_attr *)) \
	X(int, ibv_query_port, (struct ibv_context *, uint8_t, void *)) \
	X(int, ibv_query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *)) \
	X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *)) \
	X(int, ibv_dealloc_pd, (struct ibv_pd *)) \
	X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	X(int, ibv_dereg_mr, (struct ibv_mr *)) \
	X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *)) \
	X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *)) \
	X(struct ibv_cq *, ibv_create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	X(int, ibv_destroy_cq, (struct ibv_cq *)) \
	X(int, ibv_get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	X(void, ibv_ack_cq_events, (struct ibv_cq *, unsigned int)) \
	X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	X(int, ibv_query_qp, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)) \
	X(int, ibv_destroy_qp, (struct ibv_qp *))

/* Symbol version IBVERBS_1.11; without it GID types come from sysfs. */
#define OPTIONAL(X) \
	X(ssize_t, _ibv_query_gid_table, (struct ibv_context *, void *, size_t, uint32_t, size_t))

struct shim_lib {
#define FIELD(ret, name, args) ret(*name) args;
	REQUIRED(FIELD)
	OPTIONAL(FIELD)
#undef FIELD
};

static int err_of(int rc)
{
	return rc > 0 ? rc : errno ? errno : EIO;
}

/* For calls that return NULL or -1 and set errno. */
static int last_error(void)
{
	return errno ? errno : EIO;
}

int shim_load(const char *path, struct shim_lib **out, char *msg, size_t len)
{
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		snprintf(msg, len, "%s", dlerror());
		return ENOENT;
	}
	struct shim_lib *l = calloc(1, sizeof(*l));
	if (!l) {
		dlclose(h);
		snprintf(msg, len, "out of memory");
		return ENOMEM;
	}
#define LOOKUP(ret, name, args) *(void **)&l->name = dlsym(h, #name);
#define NEED(ret, name, args) \
	LOOKUP(ret, name, args) \
	if (!l->name) { \
		snprintf(msg, len, "%s has no symbol %s", path, #name); \
		free(l); \
		dlclose(h); \
		return ENOEXEC; \
	}
	REQUIRED(NEED)
	OPTIONAL(LOOKUP)
#undef NEED
#undef LOOKUP
	/* h stays open for good: drivers that it loads leave threads and handlers. */
	*out = l;
	return 0;
}

void shim_missing(struct shim_lib *l, char *buf, size_t len)
{
	size_t n = 0;
	buf[0] = 0;
#define NOTE(ret, name, args) \
	if (!l->name && n < len) \
		n += snprintf(buf + n, len - n, "%s%s", n ? " " : "", #name);
	OPTIONAL(NOTE)
#undef NOTE
}

int shim_device_list(struct shim_lib *l, void **list, int *n)
{
	errno = 0;
	*n = 0;
	*list = l->ibv_get_device_list(n);
	return *list ? 0 : last_error();
}

const char *shim_device_name(struct shim_lib *l, void *list, int i)
{
	return l->ibv_get_device_name(((struct ibv_device **)list)[i]);
}

int shim_device_is_iwarp(void *list, int i)
{
	return ((struct ibv_device **)list)[i]->transport_type == IBV_TRANSPORT_IWARP;
}

void shim_free_device_list(struct shim_lib *l, void *list)
{
	l->ibv_free_device_list(list);
}

int shim_open(struct shim_lib *l, void *list, int i, void **ctx)
{
	errno = 0;
	*ctx = l->ibv_open_device(((struct ibv_device **)list)[i]);
	return *ctx ? 0 : last_error();
}

int shim_close(struct shim_lib *l, void *ctx)
{
	errno = 0;
	int rc = l->ibv_close_device(ctx);
	return rc ? err_of(rc) : 0;
}

int shim_async_fd(void *ctx)
{
	return ((struct ibv_context *)ctx)->async_fd;
}

int shim_async_event(struct shim_lib *l, void *ctx, struct shim_event *ev)
{
	struct ibv_async_event e;

	errno = 0;
	if (l->ibv_get_async_event(ctx, &e))
		return last_error();
	memset(ev, 0, sizeof(*ev));
	ev->type = e.event_type;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		ev->kind = SHIM_EVENT_CQ;
		ev->cq_id = (uintptr_t)e.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		ev->kind = SHIM_EVENT_QP;
		ev->qp_num = e.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		ev->kind = SHIM_EVENT_PORT;
		ev->port = e.element.port_num;
		break;
	default:
		ev->kind = SHIM_EVENT_DEVICE;
	}
	l->ibv_ack_async_event(&e);
	return 0;
}

int shim_query_device(struct shim_lib *l, void *ctx, struct shim_device_attr *a)
{
	struct ibv_device_attr d;

	memset(&d, 0, sizeof(d));
	errno = 0;
	int rc = l->ibv_query_device(ctx, &d);
	if (rc)
		return err_of(rc);
	memset(a, 0, sizeof(*a));
	_Static_assert(sizeof(a->fw_ver) == sizeof(d.fw_ver), "fw_ver");
	memcpy(a->fw_ver, d.fw_ver, sizeof(a->fw_ver));
	a->fw_ver[sizeof(a->fw_ver) - 1] = 0;
	a->max_mr_size = d.max_mr_size;
	a->max_qp = d.max_qp;
	a->max_qp_wr = d.max_qp_wr;
	a->max_sge = d.max_sge;
	a->max_cq = d.max_cq;
	a->max_cqe = d.max_cqe;
	a->max_mr = d.max_mr;
	a->max_pd = d.max_pd;
	a->num_ports = d.phys_port_cnt;
	return 0;
}

int shim_query_port(struct shim_lib *l, void *ctx, uint8_t port, struct shim_port_attr *a)
{
	struct ibv_port_attr p;

	memset(&p, 0, sizeof(p));
	errno = 0;
	int rc = l->ibv_query_port(ctx, port, &p);
	if (rc)
		return err_of(rc);
	a->state = p.state;
	a->active_mtu = p.active_mtu;
	a->max_msg_sz = p.max_msg_sz;
	a->gid_tbl_len = p.gid_tbl_len;
	a->lid = p.lid;
	a->link_layer = p.link_layer;
	return 0;
}

int shim_query_gid_table(struct shim_lib *l, void *ctx, struct shim_gid *g, size_t max, size_t *n)
{
	if (!l->_ibv_query_gid_table)
		return ENOSYS;
	errno = 0;
	ssize_t rc = l->_ibv_query_gid_table(ctx, g, max, 0, sizeof(*g));
	if (rc < 0)
		return (int)-rc;
	*n = rc;
	return 0;
}

int shim_query_gid(struct shim_lib *l, void *ctx, uint8_t port, int index, uint8_t *gid)
{
	union ibv_gid g;

	errno = 0;
	int rc = l->ibv_query_gid(ctx, port, index, &g);
	if (rc)
		return err_of(rc);
	memcpy(gid, g.raw, 16);
	return 0;
}

int shim_alloc_pd(struct shim_lib *l, void *ctx, void **pd)
{
	errno = 0;
	*pd = l->ibv_alloc_pd(ctx);
	return *pd ? 0 : last_error();
}

int shim_dealloc_pd(struct shim_lib *l, void *pd)
{
	errno = 0;
	int rc = l->ibv_dealloc_pd(pd);
	return rc ? err_of(rc) : 0;
}

int shim_reg_mr(struct shim_lib *l, void *pd, void *addr, size_t len, int access, struct shim_mr *out)
{
	errno = 0;
	struct ibv_mr *mr = l->ibv_reg_mr(pd, addr, len, access);
	if (!mr)
		return last_error();
	out->mr = mr;
	out->lkey = mr->lkey;
	out->rkey = mr->rkey;
	return 0;
}

int shim_dereg_mr(struct shim_lib *l, void *mr)
{
	errno = 0;
	int rc = l->ibv_dereg_mr(mr);
	return rc ? err_of(rc) : 0;
}

int shim_create_channel(struct shim_lib *l, void *ctx, void **ch, int *fd)
{
	errno = 0;
	struct ibv_comp_channel *c = l->ibv_create_comp_channel(ctx);
	if (!c)
		return last_error();
	*ch = c;
	*fd = c->fd;
	return 0;
}

int shim_destroy_channel(struct shim_lib *l, void *ch)
{
	errno = 0;
	int rc = l->ibv_destroy_comp_channel(ch);
	return rc ? err_of(rc) : 0;
}

int shim_cq_event(struct shim_lib *l, void *ch, uint64_t *id)
{
	struct ibv_cq *cq;
	void *context;

	errno = 0;
	if (l->ibv_get_cq_event(ch, &cq, &context))
		return last_error();
	/* At once: ibv_destroy_cq waits for every event to be acknowledged. */
	l->ibv_ack_cq_events(cq, 1);
	*id = (uintptr_t)context;
	return 0;
}

int shim_create_cq(struct shim_lib *l, void *ctx, int depth, void *ch, uint64_t id, struct shim_cq **out)
{
	/* Spread the interrupts of several CQs over the device's vectors. */
	int vectors = ((struct ibv_context *)ctx)->num_comp_vectors;
	int vector = vectors > 0 ? (int)(id % vectors) : 0;
	struct shim_cq *c = calloc(1, sizeof(*c));
	if (!c)
		return ENOMEM;
	errno = 0;
	struct ibv_cq *cq = l->ibv_create_cq(ctx, depth, (void *)(uintptr_t)id, ch, vector);
	if (!cq) {
		int rc = last_error();
		free(c);
		return rc;
	}
	c->cq = cq;
	c->depth = cq->cqe;
	*out = c;
	return 0;
}

int shim_destroy_cq(struct shim_lib *l, struct shim_cq *c)
{
	errno = 0;
	int rc = l->ibv_destroy_cq(c->cq);
	if (rc)
		return err_of(rc);
	free(c);
	return 0;
}

int shim_poll_cq(struct shim_cq *c, int max, int *n)
{
	struct ibv_wc wc[SHIM_POLL_MAX];
	struct ibv_cq *cq = c->cq;

	if (max > SHIM_POLL_MAX)
		max = SHIM_POLL_MAX;
	errno = 0;
	int got = ibv_poll_cq(cq, max, wc);
	if (got < 0)
		return last_error();
	for (int i = 0; i < got; i++) {
		struct shim_wc *o = &c->wc[i];
		memset(o, 0, sizeof(*o));
		o->id = wc[i].wr_id;
		o->status = wc[i].status;
		o->vendor_err = wc[i].vendor_err;
		o->qp_num = wc[i].qp_num;
		if (wc[i].status != IBV_WC_SUCCESS)
			continue; /* the other fields are undefined */
		o->opcode = wc[i].opcode;
		o->byte_len = wc[i].byte_len;
		o->flags = wc[i].wc_flags;
		if (wc[i].wc_flags & IBV_WC_WITH_IMM)
			o->imm = ntohl(wc[i].imm_data);
	}
	*n = got;
	return 0;
}

int shim_req_notify(struct shim_cq *c)
{
	errno = 0;
	int rc = ibv_req_notify_cq((struct ibv_cq *)c->cq, 0);
	return rc ? err_of(rc) : 0;
}

int shim_create_qp(struct shim_lib *l, void *pd, struct shim_cq *scq, struct shim_cq *rcq,
		   struct shim_qp_init *init, void **out, uint32_t *num)
{
	struct ibv_qp_init_attr a;

	memset(&a, 0, sizeof(a));
	a.send_cq = scq->cq;
	a.recv_cq = rcq->cq;
	a.cap.max_send_wr = init->max_send_wr;
	a.cap.max_recv_wr = init->max_recv_wr;
	a.cap.max_send_sge = init->max_send_sge;
	a.cap.max_recv_sge = init->max_recv_sge;
	a.qp_type = IBV_QPT_RC;
	a.sq_sig_all = init->sq_sig_all;
	errno = 0;
	struct ibv_qp *qp = l->ibv_create_qp(pd, &a);
	if (!qp)
		return last_error();
	*out = qp;
	*num = qp->qp_num;
	return 0;
}

int shim_destroy_qp(struct shim_lib *l, void *qp)
{
	errno = 0;
	int rc = l->ibv_destroy_qp(qp);
	return rc ? err_of(rc) : 0;
}

int shim_modify_qp(struct shim_lib *l, void *qp, struct shim_qp_attr *a, uint32_t mask)
{
	struct ibv_qp_attr q;

	memset(&q, 0, sizeof(q));
	q.qp_state = a->state;
	q.qp_access_flags = a->access;
	q.path_mtu = a->path_mtu;
	q.dest_qp_num = a->dest_qpn;
	q.rq_psn = a->rq_psn;
	q.sq_psn = a->sq_psn;
	q.pkey_index = a->pkey_index;
	q.port_num = a->port;
	q.max_rd_atomic = a->max_rd_atomic;
	q.max_dest_rd_atomic = a->max_dest_rd_atomic;
	q.min_rnr_timer = a->min_rnr_timer;
	q.timeout = a->timeout;
	q.retry_cnt = a->retry_cnt;
	q.rnr_retry = a->rnr_retry;
	memcpy(q.ah_attr.grh.dgid.raw, a->dgid, 16);
	q.ah_attr.grh.sgid_index = a->sgid_index;
	q.ah_attr.grh.hop_limit = a->hop_limit;
	q.ah_attr.grh.traffic_class = a->traffic_class;
	q.ah_attr.dlid = a->dlid;
	q.ah_attr.sl = a->sl;
	q.ah_attr.src_path_bits = a->src_path_bits;
	q.ah_attr.is_global = a->is_global;
	q.ah_attr.port_num = a->ah_port;
	errno = 0;
	int rc = l->ibv_modify_qp(qp, &q, mask);
	return rc ? err_of(rc) : 0;
}

int shim_query_qp_state(struct shim_lib *l, void *qp, uint32_t *state)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;

	memset(&a, 0, sizeof(a));
	errno = 0;
	int rc = l->ibv_query_qp(qp, &a, IBV_QP_STATE, &init);
	if (rc)
		return err_of(rc);
	*state = a.qp_state;
	return 0;
}

static int copy_sges(struct ibv_sge *to, const struct shim_sge *from, int n)
{
	if (n < 0 || n > SHIM_MAX_SGE)
		return EINVAL;
	for (int i = 0; i < n; i++) {
		to[i].addr = from[i].addr;
		to[i].length = from[i].length;
		to[i].lkey = from[i].lkey;
	}
	return 0;
}

int shim_post_send(void *qp, struct shim_send *s, struct shim_sge *sge, int n)
{
	struct ibv_sge list[SHIM_MAX_SGE];
	struct ibv_send_wr wr, *bad = NULL;

	int rc = copy_sges(list, sge, n);
	if (rc)
		return rc;
	memset(&wr, 0, sizeof(wr));
	wr.wr_id = s->id;
	wr.sg_list = list;
	wr.num_sge = n;
	wr.opcode = s->with_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	wr.send_flags = s->signaled ? IBV_SEND_SIGNALED : 0;
	if (s->with_imm)
		wr.imm_data = htonl(s->imm);
	wr.wr.rdma.remote_addr = s->remote_addr;
	wr.wr.rdma.rkey = s->rkey;
	errno = 0;
	rc = ibv_post_send(qp, &wr, &bad);
	return rc ? err_of(rc < 0 ? -rc : rc) : 0;
}

int shim_post_recv(void *qp, uint64_t id, struct shim_sge *sge, int n)
{
	struct ibv_sge list[SHIM_MAX_SGE];
	struct ibv_recv_wr wr, *bad = NULL;

	int rc = copy_sges(list, sge, n);
	if (rc)
		return rc;
	memset(&wr, 0, sizeof(wr));
	wr.wr_id = id;
	wr.sg_list = list;
	wr.num_sge = n;
	errno = 0;
	rc = ibv_post_recv(qp, &wr, &bad);
	return rc ? err_of(rc < 0 ? -rc : rc) : 0;
}

#else /* HAVE_VERBS_H */

int shim_load(const char *path, struct shim_lib **out, char *msg, size_t len)
{
	(void)path;
	*out = NULL;
	snprintf(msg, len, "built without libibverbs headers");
	return ENOSYS;
}

/* Nothing below is reached without a library; it is here to be linked. */
void shim_missing(struct shim_lib *l, char *buf, size_t len) { (void)l; if (len) buf[0] = 0; }
const char *shim_device_name(struct shim_lib *l, void *list, int i) { (void)l; (void)list; (void)i; return ""; }
int shim_device_is_iwarp(void *list, int i) { (void)list; (void)i; return 0; }
void shim_free_device_list(struct shim_lib *l, void *list) { (void)l; (void)list; }
int shim_async_fd(void *ctx) { (void)ctx; return -1; }

#define NONE(name, ...) int name(__VA_ARGS__) { return ENOSYS; }
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
typedef struct shim_lib *lib;
NONE(shim_device_list, lib l, void **list, int *n)
NONE(shim_open, lib l, void *list, int i, void **ctx)
NONE(shim_close, lib l, void *ctx)
NONE(shim_async_event, lib l, void *ctx, struct shim_event *ev)
NONE(shim_query_device, lib l, void *ctx, struct shim_device_attr *a)
NONE(shim_query_port, lib l, void *ctx, uint8_t port, struct shim_port_attr *a)
NONE(shim_query_gid_table, lib l, void *ctx, struct shim_gid *g, size_t max, size_t *n)
NONE(shim_query_gid, lib l, void *ctx, uint8_t port, int index, uint8_t *gid)
NONE(shim_alloc_pd, lib l, void *ctx, void **pd)
NONE(shim_dealloc_pd, lib l, void *pd)
NONE(shim_reg_mr, lib l, void *pd, void *addr, size_t len, int access, struct shim_mr *mr)
NONE(shim_dereg_mr, lib l, void *mr)
NONE(shim_create_channel, lib l, void *ctx, void **ch, int *fd)
NONE(shim_destroy_channel, lib l, void *ch)
NONE(shim_cq_event, lib l, void *ch, uint64_t *id)
NONE(shim_create_cq, lib l, void *ctx, int depth, void *ch, uint64_t id, struct shim_cq **cq)
NONE(shim_destroy_cq, lib l, struct shim_cq *cq)
NONE(shim_poll_cq, struct shim_cq *cq, int max, int *n)
NONE(shim_req_notify, struct shim_cq *cq)
NONE(shim_create_qp, lib l, void *pd, struct shim_cq *scq, struct shim_cq *rcq, struct shim_qp_init *init, void **qp, uint32_t *num)
NONE(shim_destroy_qp, lib l, void *qp)
NONE(shim_modify_qp, lib l, void *qp, struct shim_qp_attr *a, uint32_t mask)
NONE(shim_query_qp_state, lib l, void *qp, uint32_t *state)
NONE(shim_post_send, void *qp, struct shim_send *s, struct shim_sge *sge, int n)
NONE(shim_post_recv, void *qp, uint64_t id, struct shim_sge *sge, int n)

#endif
