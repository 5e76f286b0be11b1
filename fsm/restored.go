package fsm

// Restored returns a snapshot of the same state for servers that have been at
// another one: an operator puts it in the place of over. Its restore epoch and
// its revision are above those of both, so that nodes refuse orders from the
// time that was undone, and nobody who has seen a later revision takes the old
// state for one that goes on from there. Its time does not go back.
func (s *Snapshot) Restored(over *Root) *Snapshot {
	root := *s.root
	root.meta = edit(root.meta)
	root.meta.RestoreEpoch = max(root.meta.GetRestoreEpoch(), over.meta.GetRestoreEpoch()) + 1
	root.meta.Time = max(root.meta.GetTime(), over.meta.GetTime())
	root.revision = max(root.revision, over.revision) + 1
	return &Snapshot{root: &root}
}
