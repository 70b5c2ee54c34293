package storage

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/butlerhub/butler/pkg/fault"
)

func openPostgres(url string, opts Options) (*DB, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// pgx's error may show parts of the address, and so of a password.
		return nil, fault.New(fault.Invalid, "the database address is not a valid postgres:// address")
	}
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > opts.Timeout {
		config.ConnectTimeout = opts.Timeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "butler"
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxOpenConns(opts.MaxConns)
	pool.SetMaxIdleConns(max(2, opts.MaxConns/2))
	pool.SetConnMaxIdleTime(5 * time.Minute)
	pool.SetConnMaxLifetime(30 * time.Minute) // after a failover behind a load balancer, connections move
	db := &DB{
		dialect: Postgres, writer: pool, reader: pool, timeout: opts.Timeout,
		name: fmt.Sprintf("PostgreSQL %s on %s", config.Database, config.Host),
	}
	db.migrating = func() (*sql.DB, func() error, error) {
		own := stdlib.OpenDB(*config)
		return own, own.Close, nil
	}
	return db, nil
}
