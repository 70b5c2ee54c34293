package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/telemetry"
)

// reachTimeout is how long a command tries to reach NATS or SQL.
const reachTimeout = 5 * time.Second

// operation is a command that works on the log and the database themselves, beside a running Butler or without one.
type operation struct {
	settings config.Settings
	log      *slog.Logger
	closers  []func()
}

func (a *app) operation() (*operation, error) {
	settings, warnings, err := a.settings()
	if err != nil {
		return nil, err
	}
	a.warn(warnings)
	return &operation{settings: settings, log: telemetry.NewLogger(a.err, "text", slog.LevelError)}, nil
}

func (o *operation) onClose(f func()) { o.closers = append(o.closers, f) }

func (o *operation) close() {
	for i := len(o.closers) - 1; i >= 0; i-- {
		o.closers[i]()
	}
	o.closers = nil
}

// operatorURL is how the operator reaches the embedded server of a running `butler up`.
func operatorURL(s config.Settings, r running) (string, error) {
	if r.NATS == "" {
		return "", fault.New(fault.Unavailable, "the `butler up` on %s (process %d) has no NATS of its own: set BUTLER_NATS_URL "+
			"here as it was set there", s.DataDir, r.PID)
	}
	password, _, err := bus.OperatorPassword(s.DataDir)
	if err != nil {
		return "", fault.Wrap(err, fault.Forbidden, "the operator's NATS password in %s cannot be read: run this as the user who "+
			"runs Butler", s.DataDir)
	}
	u, err := url.Parse(r.NATS)
	if err != nil {
		return "", fault.Wrap(err, fault.Internal, "%s is damaged", s.Path(runningFile))
	}
	u.User = url.UserPassword("operator", password)
	return u.String(), nil
}

// openLog gives the log of the settings: the NATS server that they name, or the embedded one of the `butler up` that runs
// on the data folder, or, when none does, the log in the data folder itself, which is then locked.
func (o *operation) openLog(ctx context.Context) (*bus.Bus, error) {
	s := o.settings
	// The rights that `butler nats-config` gives to the gateway are those that are needed here.
	options := bus.Options{Service: "gateway", Log: o.log, Replicas: s.NATS.Replicas, Credentials: s.NATS.Credentials}
	if !s.NATS.Embedded() {
		options.URL = s.NATS.URL
		return o.connect(ctx, options)
	}
	if r, ok := readRunning(s); ok {
		target, err := operatorURL(s, r)
		if err != nil {
			return nil, err
		}
		options.URL, options.Credentials = target, ""
		return o.connect(ctx, options)
	}
	if _, err := os.Stat(natsDir(s)); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "there is no log in %s: set BUTLER_DATA_DIR to the folder that `butler up` used, "+
			"or BUTLER_NATS_URL to the NATS server", s.DataDir)
	}
	lock, err := lockDir(s.DataDir)
	if err != nil {
		return nil, err
	}
	o.onClose(func() { _ = lock.Close() })
	server, err := bus.StartServer(bus.ServerOptions{Dir: natsDir(s), Sync: s.NATS.SyncInterval, Log: o.log})
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the log in %s cannot be opened", natsDir(s))
	}
	o.onClose(server.Close)
	options.Server = server
	return o.connect(ctx, options)
}

func (o *operation) connect(ctx context.Context, options bus.Options) (*bus.Bus, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	b, err := bus.Connect(ctx, options)
	if err != nil {
		return nil, err
	}
	o.onClose(b.Close)
	return b, nil
}

// openDatabase gives the database of the settings; a SQLite file must exist.
func (o *operation) openDatabase(ctx context.Context) (*storage.DB, error) {
	if o.settings.Database.URL == "" {
		file := o.settings.Path("butler.db")
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.NotFound, "there is no database %s: set BUTLER_DATA_DIR to the folder that `butler up` "+
				"used, or BUTLER_DATABASE_URL to the PostgreSQL", file)
		}
	}
	db, err := storage.Open(ctx, databaseURL(o.settings), storage.Options{})
	if err != nil {
		return nil, err
	}
	o.onClose(func() { _ = db.Close() })
	return db, nil
}
