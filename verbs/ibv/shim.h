#ifndef S3RDMAFS_IBV_SHIM_H
#define S3RDMAFS_IBV_SHIM_H

#include <stddef.h>
#include <stdint.h>

/*
 * Flat view of the part of libibverbs that this project uses. Functions return
 * 0 or a positive errno. Work requests and completions are built and kept in C
 * memory; pointers that Go passes are used during the call only.
 */

enum {
	SHIM_MAX_SGE = 32,  /* scatter-gather entries of one work request */
	SHIM_POLL_MAX = 64, /* completions taken by one poll */
};

struct shim_lib;

struct shim_device_attr {
	char fw_ver[64];
	uint64_t max_mr_size;
	int32_t max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_pd;
	int32_t num_ports;
};

struct shim_port_attr {
	uint32_t state, active_mtu, max_msg_sz;
	int32_t gid_tbl_len;
	uint16_t lid;
	uint8_t link_layer;
};

/* Layout of struct ibv_gid_entry, which older headers lack. */
struct shim_gid {
	uint8_t gid[16];
	uint32_t index, port, type, ifindex;
};

struct shim_mr {
	void *mr;
	uint32_t lkey, rkey;
};

struct shim_qp_init {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge;
	int32_t sq_sig_all;
};

struct shim_qp_attr {
	uint32_t state, access, path_mtu, dest_qpn, rq_psn, sq_psn;
	uint8_t dgid[16];
	uint16_t pkey_index, dlid;
	uint8_t port, sgid_index, hop_limit, traffic_class, sl, src_path_bits;
	uint8_t is_global, ah_port;
	uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer;
	uint8_t timeout, retry_cnt, rnr_retry;
};

struct shim_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct shim_send {
	uint64_t id, remote_addr;
	uint32_t rkey, imm; /* imm in host order */
	int32_t with_imm, signaled;
};

struct shim_wc {
	uint64_t id;
	uint32_t status, opcode, vendor_err, byte_len;
	uint32_t imm; /* host order */
	uint32_t qp_num, flags;
};

/* A CQ and the C memory that its completions are polled into. */
struct shim_cq {
	void *cq;
	int32_t depth;
	struct shim_wc wc[SHIM_POLL_MAX];
};

/* kind says which of the other fields is meant. */
enum { SHIM_EVENT_DEVICE, SHIM_EVENT_PORT, SHIM_EVENT_QP, SHIM_EVENT_CQ };
struct shim_event {
	uint32_t type, kind, port, qp_num;
	uint64_t cq_id;
};

/* Values of enum ibv_event_type, which do not depend on the header here. */
enum {
	SHIM_EV_CQ_ERR = 0,
	SHIM_EV_QP_FATAL = 1,
	SHIM_EV_QP_REQ_ERR = 2,
	SHIM_EV_QP_ACCESS_ERR = 3,
	SHIM_EV_DEVICE_FATAL = 8,
	SHIM_EV_PORT_ACTIVE = 9,
	SHIM_EV_PORT_ERR = 10,
	SHIM_EV_GID_CHANGE = 18,
};

/*
 * Opens the library at path. On failure msg tells why: ENOSYS when this build
 * has no verbs, ENOENT when dlopen failed, ENOEXEC when a required symbol is
 * missing.
 */
int shim_load(const char *path, struct shim_lib **out, char *msg, size_t len);
/* Lists the optional symbols that were not found, separated by spaces. */
void shim_missing(struct shim_lib *l, char *buf, size_t len);

int shim_device_list(struct shim_lib *l, void **list, int *n);
const char *shim_device_name(struct shim_lib *l, void *list, int i);
int shim_device_is_iwarp(void *list, int i);
void shim_free_device_list(struct shim_lib *l, void *list);
int shim_open(struct shim_lib *l, void *list, int i, void **ctx);
int shim_close(struct shim_lib *l, void *ctx);
int shim_async_fd(void *ctx);
/* Takes and acknowledges one event; EAGAIN when there is none. */
int shim_async_event(struct shim_lib *l, void *ctx, struct shim_event *ev);
int shim_query_device(struct shim_lib *l, void *ctx, struct shim_device_attr *a);
int shim_query_port(struct shim_lib *l, void *ctx, uint8_t port, struct shim_port_attr *a);
/* All valid entries of all ports; ENOSYS when the library cannot do it. */
int shim_query_gid_table(struct shim_lib *l, void *ctx, struct shim_gid *g, size_t max, size_t *n);
int shim_query_gid(struct shim_lib *l, void *ctx, uint8_t port, int index, uint8_t *gid);

int shim_alloc_pd(struct shim_lib *l, void *ctx, void **pd);
int shim_dealloc_pd(struct shim_lib *l, void *pd);
int shim_reg_mr(struct shim_lib *l, void *pd, void *addr, size_t len, int access, struct shim_mr *mr);
int shim_dereg_mr(struct shim_lib *l, void *mr);

int shim_create_channel(struct shim_lib *l, void *ctx, void **ch, int *fd);
int shim_destroy_channel(struct shim_lib *l, void *ch);
/* Takes and acknowledges one event and gives its CQ's id; EAGAIN when none. */
int shim_cq_event(struct shim_lib *l, void *ch, uint64_t *id);

int shim_create_cq(struct shim_lib *l, void *ctx, int depth, void *ch, uint64_t id, struct shim_cq **cq);
int shim_destroy_cq(struct shim_lib *l, struct shim_cq *cq);
/* Polls at most max completions into cq->wc. */
int shim_poll_cq(struct shim_cq *cq, int max, int *n);
int shim_req_notify(struct shim_cq *cq);

int shim_create_qp(struct shim_lib *l, void *pd, struct shim_cq *scq, struct shim_cq *rcq,
		   struct shim_qp_init *init, void **qp, uint32_t *num);
int shim_destroy_qp(struct shim_lib *l, void *qp);
int shim_modify_qp(struct shim_lib *l, void *qp, struct shim_qp_attr *a, uint32_t mask);
int shim_query_qp_state(struct shim_lib *l, void *qp, uint32_t *state);
int shim_post_send(void *qp, struct shim_send *s, struct shim_sge *sge, int n);
int shim_post_recv(void *qp, uint64_t id, struct shim_sge *sge, int n);

#endif
