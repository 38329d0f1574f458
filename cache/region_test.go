package cache

import "testing"

// Only the steps of the package comment are possible; above all nothing goes from
// filling to free, and nothing leaves quarantine.
func TestIllegalTransitionsPanic(t *testing.T) {
	legal := map[[2]state]bool{
		{stateFree, stateFilling}:        true,
		{stateFilling, stateResident}:    true,
		{stateFilling, stateDraining}:    true,
		{stateFilling, stateQuarantined}: true,
		{stateResident, stateDraining}:   true,
		{stateDraining, stateFree}:       true,
		{stateFree, stateStaging}:        true,
		{stateStaging, stateFree}:        true,
		{stateStaging, stateQuarantined}: true,
	}
	for from := stateFree; from < stateCount; from++ {
		for to := stateFree; to < stateCount; to++ {
			func() {
				defer func() {
					if panicked := recover() != nil; panicked == legal[[2]state{from, to}] {
						t.Errorf("%v to %v: panicked %v", from, to, panicked)
					}
				}()
				(&Cache{}).move(&region{state: from, units: 1}, to)
			}()
		}
	}
}
