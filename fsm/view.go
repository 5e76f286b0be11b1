package fsm

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Audience is who looks at an intercept.
type Audience uint8

// The audiences. The zero value is the one that sees least.
const (
	// AudienceReader sees the owner's disposition and no environment.
	AudienceReader Audience = iota
	// AudienceAgent sees what AgentView says and no environment.
	AudienceAgent
	// AudienceOwner sees everything.
	AudienceOwner
)

// AgentView returns an intercept's disposition as the agents of its workload
// see it, and whether they see it at all. While its owner is away they do not,
// so that traffic goes to the app; when the owner is back they are asked
// again.
func AgentView(row *commandv1.InterceptRow) (manager.InterceptDispositionType, bool) {
	d := row.GetDisposition()
	switch {
	case d == manager.InterceptDispositionType_REMOVED:
		return d, true
	case row.GetOwnerState() == commandv1.OwnerState_OWNER_STATE_AWAY:
		return manager.InterceptDispositionType_NO_CLIENT, false
	case rearming(row):
		return manager.InterceptDispositionType_WAITING, true
	}
	switch d {
	case manager.InterceptDispositionType_WAITING, manager.InterceptDispositionType_ACTIVE,
		manager.InterceptDispositionType_AGENT_ERROR:
		return d, true
	}
	return d, false
}

// OwnerView returns an intercept's disposition as its owner sees it.
func OwnerView(row *commandv1.InterceptRow) manager.InterceptDispositionType {
	return row.GetDisposition()
}

// InterceptInfo returns an intercept as the contract describes it, for one
// audience. It shares the spec and the maps with the row: it may be sent, not
// modified.
func InterceptInfo(row *commandv1.InterceptRow, audience Audience) *manager.InterceptInfo {
	info := &manager.InterceptInfo{
		Spec:              row.GetSpec(),
		Disposition:       OwnerView(row),
		Message:           row.GetMessage(),
		Id:                row.GetId(),
		ClientSession:     &manager.SessionInfo{SessionId: row.GetSessionId()},
		PodIp:             row.GetPodIp(),
		PodName:           row.GetPodName(),
		ApiPort:           row.GetApiPort(),
		SftpPort:          row.GetSftpPort(),
		FtpPort:           row.GetFtpPort(),
		MountPoint:        row.GetMountPoint(),
		MechanismArgsDesc: row.GetMechanismArgsDesc(),
		Headers:           row.GetHeaders(),
		Metadata:          row.GetMetadata(),
		Mounts:            row.GetMounts(),
		ModifiedAt:        timestamp(row.GetModifiedAt()),
	}
	switch audience {
	case AudienceOwner:
		info.Environment = row.GetEnvironment()
	case AudienceAgent:
		info.Disposition, _ = AgentView(row)
	}
	return info
}

// timestamp converts unix nanoseconds.
func timestamp(ns int64) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: ns / 1e9, Nanos: int32(ns % 1e9)}
}
