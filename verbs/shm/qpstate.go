package shm

import (
	"fmt"

	"s3rdmafs/verbs"
)

// transition is a row of the QP state table for RC: which attributes a change
// of state must and may carry besides the state itself.
type transition struct {
	required, optional verbs.QPAttrMask
}

// transitions follows the table of the kernel (ib_modify_qp_is_ok). SQE is
// missing, since an RC QP never gets there.
var transitions = map[[2]verbs.QPState]transition{
	{verbs.StateReset, verbs.StateReset}: {},
	{verbs.StateReset, verbs.StateInit}:  {required: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccessFlags},
	{verbs.StateInit, verbs.StateReset}:  {},
	{verbs.StateInit, verbs.StateErr}:    {},
	{verbs.StateInit, verbs.StateInit}:   {optional: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccessFlags},
	{verbs.StateInit, verbs.StateRTR}: {
		required: verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer,
		optional: verbs.AttrAccessFlags | verbs.AttrPKeyIndex,
	},
	{verbs.StateRTR, verbs.StateReset}: {},
	{verbs.StateRTR, verbs.StateErr}:   {},
	{verbs.StateRTR, verbs.StateRTS}: {
		required: verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrSQPSN | verbs.AttrMaxQPRdAtomic,
		optional: verbs.AttrAccessFlags | verbs.AttrMinRNRTimer,
	},
	{verbs.StateRTS, verbs.StateReset}: {},
	{verbs.StateRTS, verbs.StateErr}:   {},
	{verbs.StateRTS, verbs.StateRTS}:   {optional: verbs.AttrAccessFlags | verbs.AttrMinRNRTimer},
	{verbs.StateRTS, verbs.StateSQD}:   {},
	{verbs.StateSQD, verbs.StateReset}: {},
	{verbs.StateSQD, verbs.StateErr}:   {},
	{verbs.StateSQD, verbs.StateSQD}: {
		optional: verbs.AttrAccessFlags | verbs.AttrMinRNRTimer | verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry,
	},
	{verbs.StateSQD, verbs.StateRTS}:   {optional: verbs.AttrAccessFlags | verbs.AttrMinRNRTimer},
	{verbs.StateErr, verbs.StateReset}: {},
	{verbs.StateErr, verbs.StateErr}:   {},
}

// checkModify judges a change against the table and the values it carries.
func checkModify(cur verbs.QPState, a verbs.QPAttr, mask verbs.QPAttrMask) error {
	row, ok := transitions[[2]verbs.QPState{cur, a.State}]
	if !ok {
		return fmt.Errorf("%w: QP from %v to %v", verbs.ErrInvalid, cur, a.State)
	}
	given := mask &^ verbs.AttrState
	if missing := row.required &^ given; missing != 0 {
		return fmt.Errorf("%w: QP from %v to %v lacks attributes %#x", verbs.ErrInvalid, cur, a.State, missing)
	}
	if excess := given &^ (row.required | row.optional); excess != 0 {
		return fmt.Errorf("%w: QP from %v to %v does not take attributes %#x", verbs.ErrInvalid, cur, a.State, excess)
	}
	bad := func(m verbs.QPAttrMask, wrong bool) bool { return given&m != 0 && wrong }
	switch {
	case bad(verbs.AttrPKeyIndex, a.PKeyIndex != 0):
		return fmt.Errorf("%w: P_Key index %d", verbs.ErrInvalid, a.PKeyIndex)
	case bad(verbs.AttrPort, a.Port != 1):
		return fmt.Errorf("%w: port %d", verbs.ErrInvalid, a.Port)
	case bad(verbs.AttrAccessFlags, a.AccessFlags&^knownAccess != 0):
		return fmt.Errorf("%w: access %#x", verbs.ErrInvalid, a.AccessFlags)
	case bad(verbs.AttrPathMTU, a.PathMTU < verbs.MTU256 || a.PathMTU > activeMTU):
		return fmt.Errorf("%w: path MTU %d", verbs.ErrInvalid, a.PathMTU)
	case bad(verbs.AttrDestQPN, a.DestQPN > mask24):
		return fmt.Errorf("%w: destination QP number %#x", verbs.ErrInvalid, a.DestQPN)
	case bad(verbs.AttrRQPSN, a.RQPSN > mask24), bad(verbs.AttrSQPSN, a.SQPSN > mask24):
		return fmt.Errorf("%w: PSN over 24 bits", verbs.ErrInvalid)
	case bad(verbs.AttrTimeout, a.Timeout > 31):
		return fmt.Errorf("%w: timeout %d", verbs.ErrInvalid, a.Timeout)
	case bad(verbs.AttrRetryCnt, a.RetryCnt > 7), bad(verbs.AttrRNRRetry, a.RNRRetry > 7):
		return fmt.Errorf("%w: retry count over 7", verbs.ErrInvalid)
	case bad(verbs.AttrMinRNRTimer, a.MinRNRTimer > 31):
		return fmt.Errorf("%w: RNR timer %d", verbs.ErrInvalid, a.MinRNRTimer)
	case bad(verbs.AttrMaxQPRdAtomic, a.MaxRdAtomic > 16), bad(verbs.AttrMaxDestRdAtomic, a.MaxDestRdAtomic > 16):
		return fmt.Errorf("%w: more than 16 RDMA reads", verbs.ErrInvalid)
	}
	if given&verbs.AttrAV != 0 {
		return checkAH(a.AH)
	}
	return nil
}

func checkAH(ah verbs.AHAttr) error {
	switch {
	case !ah.IsGlobal:
		return fmt.Errorf("%w: address without a GID", verbs.ErrInvalid)
	case ah.SGIDIndex != 0:
		return fmt.Errorf("%w: GID index %d", verbs.ErrInvalid, ah.SGIDIndex)
	case ah.PortNum != 1:
		return fmt.Errorf("%w: port %d", verbs.ErrInvalid, ah.PortNum)
	case ah.SL > 15:
		return fmt.Errorf("%w: service level %d", verbs.ErrInvalid, ah.SL)
	case !IsGID(ah.DGID):
		return fmt.Errorf("%w: GID %v is not of a software device", verbs.ErrUnreachable, ah.DGID)
	}
	return nil
}
