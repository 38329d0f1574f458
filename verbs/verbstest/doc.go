// Package verbstest is one suite of tests for every provider of package verbs:
// what the rest of the project relies on, checked on a device. It knows nothing
// of a provider but the interfaces.
//
// A provider's test calls Run.
package verbstest
