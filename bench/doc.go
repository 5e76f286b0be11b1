// Package bench measures. Every bench runs real processes, prints what it did
// as one Result, and asserts nothing: ratios within one run are the truth,
// absolute figures describe the machine they were taken on.
package bench
