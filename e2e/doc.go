// Package e2e holds the tests of Butler as people run it: real processes, a real NATS server, a real PostgreSQL, and a
// scripted model endpoint. They kill, stop, freeze and flood these and then count: every accepted message has exactly one
// final answer, in order, whole or with a reason, and is in the history.
//
// process_test.go starts and kills processes, site_test.go puts them together as `butler up` or as the distributed form,
// device_test.go is a client that behaves well, check_test.go counts. README.md says which test covers what.
//
// Environment of the tests:
//
//	BUTLER_SOAK=1   whole numbers instead of small samples; takes about an hour
//	E2E_BIN         folder with a built `butler` to test instead of building one
//	E2E_SEED        seed of the random moments; printed by every test that has some
//	E2E_LOGS        folder in which the logs of all processes are kept
//	E2E_STRICT=1    time limits hold also on a machine that is busy with other things
package e2e
