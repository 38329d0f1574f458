/*
 * Shared between the stand-in library and the test that drives it: the file
 * "control" in the directory that S3RDMAFS_FAKE_VERBS names. All fields are
 * 32 bits wide; control_test.go has the same structure in Go.
 */
#include <stdint.h>

enum { LIVE_LIST, LIVE_CONTEXT, LIVE_PD, LIVE_MR, LIVE_CHANNEL, LIVE_CQ, LIVE_QP, LIVE_KINDS };

struct control {
	int32_t live[LIVE_KINDS]; /* objects that exist */
	int32_t unacked;          /* events taken and not acknowledged */
	int32_t no_devices;       /* errno of ibv_get_device_list, 0: there are devices */
	int32_t no_gid_table;     /* errno of _ibv_query_gid_table */
	/* Fault: the call number fail_nth (from 1) of fail_op fails; 0: none. */
	int32_t fail_nth, fail_errno;
	char fail_op[32];
	/* Raise an asynchronous event each time event_seq changes. */
	int32_t event_type, event_port, event_seq;
};
