// Command butler is all of Butler in one binary: `butler up` runs everything on one machine, `butler gateway`, `butler
// brain` and `butler registry` run one service each, and the rest is the command-line tool for people and operators.
//
// What is where: app.go is what all commands share and exit.go how they end; up.go and services.go run services, wire.go
// puts them together; the files named after a command are that command.
package main

import (
	"os"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version = "dev"

func main() {
	a := newApp(os.Stdin, os.Stdout, os.Stderr, os.Environ())
	os.Exit(a.run(os.Args[1:]))
}
