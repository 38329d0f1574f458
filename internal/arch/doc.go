// Package arch has no code: its tests hold the shape of the module, the
// direction in which packages import each other and that each has a
// package comment.
package arch
