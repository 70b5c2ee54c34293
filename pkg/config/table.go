package config

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"
)

// Setting describes one setting.
type Setting struct {
	Key         string // in the YAML file, sections with dots
	Env         string // environment variable
	Default     string // as it would be written; "" for none
	DefaultNote string // what an empty or computed default means
	Description string // English, one or two sentences
	Secret      bool   // never shown
	Reloadable  bool   // takes effect on SIGHUP or POST /config/reload, without a restart
	List        bool   // several values: a YAML sequence, or commas in the environment
}

type entry struct {
	Setting
	parse func(s *Settings, text string) error
	show  func(s *Settings) string
	same  func(a, b *Settings) bool
	copy  func(to, from *Settings)
}

// bind ties a setting to its field and fills in what the table says about it.
func bind[T any](key, env, def string, c codec[T], field func(*Settings) *T, description string,
	opts ...func(*Setting)) entry {
	e := entry{
		Setting: Setting{Key: key, Env: env, Default: def, Description: description},
		parse: func(s *Settings, text string) error {
			v, err := c.parse(text)
			if err != nil {
				return err
			}
			*field(s) = v
			return nil
		},
		show: func(s *Settings) string { return c.format(*field(s)) },
		same: func(a, b *Settings) bool { return equal(field(a), field(b)) },
		copy: func(to, from *Settings) { *field(to) = *field(from) },
	}
	for _, o := range opts {
		o(&e.Setting)
	}
	return e
}

func hidden(s *Setting)     { s.Secret = true }
func reloadable(s *Setting) { s.Reloadable = true }
func several(s *Setting)    { s.List = true }

func note(text string) func(*Setting) {
	return func(s *Setting) { s.DefaultNote = text }
}

// table gives every setting, in the order of the reference page. It depends on the environment only where a default is
// a path below the home folder; dataDir is the default of data_dir.
func table(home, dataDir string) []entry {
	file := path(home)
	return []entry{
		bind("data_dir", "BUTLER_DATA_DIR", dataDir, file,
			func(s *Settings) *string { return &s.DataDir },
			"Folder for everything that Butler keeps on this machine: the log, the SQLite database, keys.",
			note("`$XDG_DATA_HOME/butler`, else `~/.local/share/butler`")),

		bind("http.addr", "BUTLER_HTTP_ADDR", "127.0.0.1:8080", addr(),
			func(s *Settings) *string { return &s.HTTP.Addr },
			"Where the gateway listens: page, API and WebSocket. Put a proxy with TLS before it, or write 0.0.0.0:8080, "+
				"to let other machines in."),
		bind("http.public_url", "BUTLER_PUBLIC_URL", "", origin(),
			func(s *Settings) *string { return &s.HTTP.PublicURL },
			"Where people reach the gateway when that is not its own address, such as https://butler.example.org.",
			note("the gateway's own address")),
		bind("http.trusted_proxies", "BUTLER_TRUSTED_PROXIES", "", prefixes(),
			func(s *Settings) *[]netip.Prefix { return &s.HTTP.TrustedProxies },
			"Networks of the proxies whose X-Forwarded-For is believed, such as 10.0.0.0/8.",
			several, note("nobody is believed")),
		bind("http.allowed_origins", "CORS_ALLOWED_ORIGINS", "", origins(),
			func(s *Settings) *[]string { return &s.HTTP.AllowedOrigins },
			"Web origins beside Butler's own whose pages may call the API.", several, note("only Butler's own pages")),
		bind("http.cookie_secure", "BUTLER_COOKIE_SECURE", "auto",
			oneOf(CookieSecureAuto, CookieSecureAlways, CookieSecureNever),
			func(s *Settings) *CookieSecure { return &s.HTTP.CookieSecure },
			"Whether browsers send the sign-in cookie over https only: auto (when people come by https), true or false."),

		bind("ops.addr", "BUTLER_OPS_ADDR", "127.0.0.1:8081", addr(),
			func(s *Settings) *string { return &s.Ops.Addr },
			"Where /health, /ready and /metrics listen. They ask for no password: keep this address internal."),

		bind("nats.url", "BUTLER_NATS_URL", "", links("nats", "tls", "ws", "wss"),
			func(s *Settings) *string { return &s.NATS.URL },
			"NATS servers with JetStream, commas between them.", note("an embedded server")),
		bind("nats.addr", "BUTLER_NATS_ADDR", "127.0.0.1:4222", addr(),
			func(s *Settings) *string { return &s.NATS.Addr },
			"Where the embedded NATS server listens."),
		bind("nats.credentials", "BUTLER_NATS_CREDENTIALS", "", file,
			func(s *Settings) *string { return &s.NATS.Credentials },
			"File with an nkey seed, or a .creds file, with which this process signs in to NATS.", note("none")),
		bind("nats.agents_key", "BUTLER_AGENTS_KEY", "", file,
			func(s *Settings) *string { return &s.NATS.AgentsKey },
			"File with the key that lets agents in on NATS (agents.nk of `butler nats-config`). Only agent-registry needs it.",
			note("that of the embedded server; else agents cannot connect")),
		bind("nats.sync", "BUTLER_NATS_SYNC", "always", syncInterval(),
			func(s *Settings) *time.Duration { return &s.NATS.SyncInterval },
			"When the embedded server writes events through to disk: always (before each is acknowledged), or a duration "+
				"such as 2m. A duration is faster, and a power cut loses what was acknowledged within it."),
		bind("nats.replicas", "BUTLER_NATS_REPLICAS", "1", replicas(),
			func(s *Settings) *int { return &s.NATS.Replicas },
			"Copies of each stream: 1, 3 or 5; not more than there are NATS servers."),

		bind("database.url", "BUTLER_DATABASE_URL", "", link(true, "postgres", "postgresql"),
			func(s *Settings) *string { return &s.Database.URL },
			"PostgreSQL, such as postgres://user:password@host:5432/butler?sslmode=verify-full.",
			hidden, note("SQLite in the data folder")),

		bind("rpc.token", "INTERNAL_SERVICE_TOKEN", "", secret(32),
			func(s *Settings) *Secret { return &s.RPC.Token },
			"What services show each other over gRPC: the same in each, 32 characters or more (openssl rand -hex 32).",
			hidden, note("generated by `butler up`; needed by single services")),
		bind("rpc.brain_addr", "BUTLER_BRAIN_ADDR", "127.0.0.1:8092", addr(),
			func(s *Settings) *string { return &s.RPC.BrainAddr },
			"Where butler-brain listens for gRPC."),
		bind("rpc.brain_target", "BUTLER_BRAIN_TARGET", "", target(),
			func(s *Settings) *string { return &s.RPC.BrainTarget },
			"Where other services reach butler-brain: host:port, or dns:///name:port to spread over its replicas.",
			note("`BUTLER_BRAIN_ADDR`")),
		bind("rpc.registry_addr", "BUTLER_REGISTRY_ADDR", "127.0.0.1:8093", addr(),
			func(s *Settings) *string { return &s.RPC.RegistryAddr },
			"Where agent-registry listens for gRPC."),
		bind("rpc.registry_target", "BUTLER_REGISTRY_TARGET", "", target(),
			func(s *Settings) *string { return &s.RPC.RegistryTarget },
			"Where other services reach agent-registry: host:port, or dns:///name:port to spread over its replicas.",
			note("`BUTLER_REGISTRY_ADDR`")),
		bind("rpc.approval_addr", "BUTLER_APPROVAL_ADDR", "127.0.0.1:8094", addr(),
			func(s *Settings) *string { return &s.RPC.ApprovalAddr },
			"Where approval listens for gRPC."),
		bind("rpc.approval_target", "BUTLER_APPROVAL_TARGET", "", target(),
			func(s *Settings) *string { return &s.RPC.ApprovalTarget },
			"Where other services reach approval: host:port, or dns:///name:port to spread over its replicas.",
			note("`BUTLER_APPROVAL_ADDR`")),
		bind("rpc.people_addr", "BUTLER_PEOPLE_ADDR", "127.0.0.1:8095", addr(),
			func(s *Settings) *string { return &s.RPC.PeopleAddr },
			"Where the gateway listens for gRPC of other services, which ask it who may do what."),
		bind("rpc.people_target", "BUTLER_PEOPLE_TARGET", "", target(),
			func(s *Settings) *string { return &s.RPC.PeopleTarget },
			"Where other services reach the gateway over gRPC: host:port, or dns:///name:port to spread over its replicas.",
			note("`BUTLER_PEOPLE_ADDR`")),
		bind("rpc.shell_addr", "BUTLER_SHELL_ADDR", "127.0.0.1:8096", addr(),
			func(s *Settings) *string { return &s.RPC.ShellAddr },
			"Where shell-runner listens for gRPC."),
		bind("rpc.shell_targets", "BUTLER_SHELL_TARGETS", "", list(pair("host=target", hostToken, target().parse)),
			func(s *Settings) *[]string { return &s.RPC.ShellTargets },
			"The shell-runners, each as host=target with the host's BUTLER_SHELL_HOST, such as web1=web1:8096. The first is used "+
				"when nobody says which.", several, note("`BUTLER_SHELL_HOST` at `BUTLER_SHELL_ADDR`")),
		bind("rpc.compactor_addr", "BUTLER_COMPACTOR_ADDR", "127.0.0.1:8097", addr(),
			func(s *Settings) *string { return &s.RPC.CompactorAddr },
			"Where compactor listens for gRPC."),
		bind("rpc.compactor_target", "BUTLER_COMPACTOR_TARGET", "", target(),
			func(s *Settings) *string { return &s.RPC.CompactorTarget },
			"Where other services reach compactor: host:port, or dns:///name:port to spread over its replicas.",
			note("`BUTLER_COMPACTOR_ADDR`")),
		bind("rpc.tls_cert", "BUTLER_TLS_CERT", "", file,
			func(s *Settings) *string { return &s.RPC.TLSCert },
			"PEM file with this service's certificate for mutual TLS over gRPC. It, the key and the CA go together.",
			note("no TLS")),
		bind("rpc.tls_key", "BUTLER_TLS_KEY", "", file,
			func(s *Settings) *string { return &s.RPC.TLSKey },
			"PEM file with the key of BUTLER_TLS_CERT.", note("no TLS")),
		bind("rpc.tls_ca", "BUTLER_TLS_CA", "", file,
			func(s *Settings) *string { return &s.RPC.TLSCA },
			"PEM file with the authorities that sign the certificates of services.", note("no TLS")),

		bind("model.base_url", "BUTLER_BASE_URL", "", link(false, "http", "https"),
			func(s *Settings) *string { return &s.Model.BaseURL },
			"OpenAI-compatible endpoint of the language model, such as https://api.openai.com/v1.",
			reloadable, note("the built-in demo model; Anthropic's endpoint when its key and a model are set")),
		bind("model.api_token", "BUTLER_API_TOKEN", "", secret(0),
			func(s *Settings) *Secret { return &s.Model.APIToken },
			"Token for the model's endpoint.", hidden, reloadable, note("none")),
		bind("model.name", "BUTLER_MODEL", "", plain(0, 256),
			func(s *Settings) *string { return &s.Model.Name },
			"Name of the model at that endpoint.", reloadable, note("the built-in demo model")),
		bind("model.anthropic_api_key", "ANTHROPIC_API_KEY", "", secret(0),
			func(s *Settings) *Secret { return &s.Model.AnthropicKey },
			"With BUTLER_MODEL and without BUTLER_BASE_URL: Anthropic's OpenAI-compatible endpoint is used with this key.",
			hidden, reloadable, note("none")),
		bind("model.context_window", "BUTLER_CONTEXT_WINDOW", "128000", number(1024, 10_000_000),
			func(s *Settings) *int { return &s.Model.ContextWindow },
			"Tokens that fit into the model: prompt and answer together. Older messages that do not fit are left out.", reloadable),
		bind("model.idle_timeout", "BUTLER_MODEL_IDLE_TIMEOUT", "2m", duration(time.Second, time.Hour),
			func(s *Settings) *time.Duration { return &s.Model.IdleTimeout },
			"A model call in which nothing arrives for this long, not even its beginning, is given up.", reloadable),
		bind("model.retries", "BUTLER_MODEL_RETRIES", "3", number(0, 3),
			func(s *Settings) *int { return &s.Model.Retries },
			"How often a failed model call is tried again, where that can help; 0 for never.", reloadable),

		bind("compaction.enabled", "BUTLER_CONTEXT_COMPACTION_ENABLED", "true", boolean(),
			func(s *Settings) *bool { return &s.Compaction.Enabled },
			"Whether older messages of long conversations are summarised by themselves."),
		bind("compaction.base_url", "BUTLER_CONTEXT_COMPACTION_BASE_URL", "", link(false, "http", "https"),
			func(s *Settings) *string { return &s.Compaction.BaseURL },
			"OpenAI-compatible endpoint of the model that writes summaries.", note("`BUTLER_BASE_URL`")),
		bind("compaction.api_token", "BUTLER_CONTEXT_COMPACTION_API_TOKEN", "", secret(0),
			func(s *Settings) *Secret { return &s.Compaction.APIToken },
			"Token for that endpoint.", hidden, note("`BUTLER_API_TOKEN`, at the same endpoint only")),
		bind("compaction.model", "BUTLER_CONTEXT_COMPACTION_MODEL", "", plain(0, 256),
			func(s *Settings) *string { return &s.Compaction.Model },
			"Name of the model that writes summaries.", note("`BUTLER_MODEL`")),
		bind("compaction.context_window", "BUTLER_CONTEXT_COMPACTION_CONTEXT_WINDOW", "0", number(0, 10_000_000),
			func(s *Settings) *int { return &s.Compaction.ContextWindow },
			"Tokens that fit into that model; longer histories are summarised in pieces. 0 means `BUTLER_CONTEXT_WINDOW`."),
		bind("compaction.trigger_messages", "BUTLER_CONTEXT_COMPACTION_TRIGGER_MESSAGES", "24", number(2, 100_000),
			func(s *Settings) *int { return &s.Compaction.TriggerMessages },
			"A conversation with more messages than this since its last summary is summarised."),
		bind("compaction.trigger_chars", "BUTLER_CONTEXT_COMPACTION_TRIGGER_CHARS", "12000", number(1000, 100_000_000),
			func(s *Settings) *int { return &s.Compaction.TriggerChars },
			"So is one with more characters than this, its summary included."),
		bind("compaction.trigger_tokens", "BUTLER_CONTEXT_COMPACTION_TRIGGER_TOKENS", "0", number(0, 10_000_000),
			func(s *Settings) *int { return &s.Compaction.TriggerTokens },
			"So is one with more tokens than this. 0 means half of `BUTLER_CONTEXT_WINDOW`."),
		bind("compaction.recent_window", "BUTLER_CONTEXT_COMPACTION_RECENT_WINDOW", "8", number(1, 10_000),
			func(s *Settings) *int { return &s.Compaction.RecentWindow },
			"How many of the newest messages stay as they are, at most: they may take half of what starts a summary."),

		bind("turn.max_steps", "BUTLER_MAX_STEPS", "15", number(1, 1000),
			func(s *Settings) *int { return &s.Turn.MaxSteps },
			"Model calls that answering one message may take.", reloadable),
		bind("turn.timeout", "BUTLER_TURN_TIMEOUT", "10m", duration(time.Second, 24*time.Hour),
			func(s *Settings) *time.Duration { return &s.Turn.Timeout },
			"Active time that answering one message may take; waiting for people and agents does not count.", reloadable),
		bind("turn.max_concurrent", "BUTLER_MAX_CONCURRENT_TURNS", "256", number(1, 100_000),
			func(s *Settings) *int { return &s.Turn.MaxConcurrent },
			"Messages that one replica of butler-brain answers at the same time; others wait their turn."),
		bind("turn.system_prompt_file", "BUTLER_SYSTEM_PROMPT_FILE", "", file,
			func(s *Settings) *string { return &s.Turn.SystemPromptFile },
			"Text file with instructions that are added to the built-in system prompt.", reloadable, note("nothing is added")),

		bind("messages.rate", "BUTLER_MESSAGE_RATE", "30", number(0, 1_000_000),
			func(s *Settings) *int { return &s.Messages.Rate },
			"Messages that one person may send in a second; 0 is no limit."),
		bind("messages.burst", "BUTLER_MESSAGE_BURST", "100", number(1, 1_000_000),
			func(s *Settings) *int { return &s.Messages.Burst },
			"Messages that one person may send at once, before that rate holds."),
		bind("messages.max_waiting", "BUTLER_MAX_WAITING_MESSAGES", "100", number(0, 1_000_000),
			func(s *Settings) *int { return &s.Messages.MaxWaiting },
			"Messages of one person that may wait for their answer, in all their conversations; more are refused. 0 is no limit."),

		bind("accounts.admin_user", "INITIAL_ADMIN_USER", "admin", plain(1, 64),
			func(s *Settings) *string { return &s.Accounts.AdminUser },
			"Name of the first admin, made when there are no people yet."),
		bind("accounts.admin_password", "INITIAL_ADMIN_PASS", "", secret(8),
			func(s *Settings) *Secret { return &s.Accounts.AdminPassword },
			"Password of the first admin, 8 to 1024 bytes.",
			hidden, note("generated, printed once and kept in the data folder")),
		bind("accounts.sign_in_lifetime", "JWT_TOKEN_EXPIRATION", "24h", duration(time.Minute, 8760*time.Hour),
			func(s *Settings) *time.Duration { return &s.Accounts.SignInLifetime },
			"How long a sign-in lasts."),
		bind("accounts.password_memory_kib", "BUTLER_PASSWORD_MEMORY_KIB", "19456", number[uint32](8192, 1<<20),
			func(s *Settings) *uint32 { return &s.Accounts.PasswordMemoryKiB },
			"Memory for checking one password (argon2id), in KiB. New passwords use it; weaker stored ones are made anew at the next sign-in."),
		bind("accounts.password_time", "BUTLER_PASSWORD_TIME", "2", number[uint32](1, 64),
			func(s *Settings) *uint32 { return &s.Accounts.PasswordTime },
			"Passes over that memory (argon2id)."),

		bind("approval.timeout", "BUTLER_APPROVAL_TIMEOUT", "300", seconds(time.Second, 24*time.Hour),
			func(s *Settings) *time.Duration { return &s.Approval.Timeout },
			"How long a request for approval may be decided: seconds, or a duration such as 5m. Then it is expired.", reloadable),
		bind("approval.run_timeout", "BUTLER_APPROVAL_RUN_TIMEOUT", "300", seconds(time.Second, 24*time.Hour),
			func(s *Settings) *time.Duration { return &s.Approval.RunTimeout },
			"How long after its approval something may begin: seconds, or a duration. Later it is asked for again.", reloadable),
		bind("approval.policy_file", "BUTLER_APPROVAL_POLICY", "", file,
			func(s *Settings) *string { return &s.Approval.PolicyFile },
			"YAML file that says what runs, what is asked, and who decides; see the how-to on approvals.",
			reloadable, note("the built-in policy")),
		bind("approval.key_file", "BUTLER_APPROVAL_KEY", "", file,
			func(s *Settings) *string { return &s.Approval.KeyFile },
			"File with the private key (Ed25519, PEM) that signs grants and the audit chain; made with mode 0600 when missing. "+
				"All replicas of approval need the same.", note("`approval.key` in the data folder")),

		bind("shell.host", "BUTLER_SHELL_HOST", "", hostName(),
			func(s *Settings) *string { return &s.Shell.Host },
			"Name of this host's shell-runner: 1 to 63 letters, digits, - and _.", note("the machine's host name")),
		bind("shell.command_timeout", "BUTLER_COMMAND_TIMEOUT", "30", seconds(time.Second, time.Hour),
			func(s *Settings) *time.Duration { return &s.Shell.CommandTimeout },
			"How long a command is waited for: seconds, or a duration. It goes on as a job, which reports when it ends.", reloadable),
		bind("shell.log_output", "BUTLER_SHELL_LOG_OUTPUT", "64", number(0, 10_240),
			func(s *Settings) *int { return &s.Shell.LogOutput },
			"How much of one command's output is logged, in MiB; `butler shell log` shows it. 0: only what its outcome keeps, the "+
				"first 16 KiB and the last 48 KiB.", reloadable),
		bind("shell.os_users", "BUTLER_SHELL_OS_USERS", "", list(pair("person=user", plain(1, 64).parse, plain(1, 64).parse)),
			func(s *Settings) *[]string { return &s.Shell.OSUsers },
			"User of the system for each person's shell, as person=user with the person's id, when shell-runner is root; *=user "+
				"for everybody else.", several, note("single-user mode: shells run as shell-runner's own user, with a warning")),
		bind("security.allowed_users", "BUTLER_ALLOWED_USERS", "", list(plain(1, 128)),
			func(s *Settings) *[]string { return &s.Shell.AllowedUsers },
			"Who may use shells: ids or names of people, or their identities in channels.",
			several, reloadable, note("nobody, but for the first admin under `butler up`")),
		bind("session.idle_timeout", "SESSION_IDLE_TIMEOUT", "3600", seconds(time.Minute, 720*time.Hour),
			func(s *Settings) *time.Duration { return &s.Shell.IdleTimeout },
			"A shell session in which nothing happened and nothing runs for this long is closed, after a warning: seconds, or a "+
				"duration.", reloadable),
		bind("session.max_per_user", "MAX_SESSIONS_PER_USER", "1", number(1, 1),
			func(s *Settings) *int { return &s.Shell.MaxPerUser },
			"Shell sessions of one person on one host."),
		bind("session.max_total", "MAX_TOTAL_SESSIONS", "100", number(1, 10_000),
			func(s *Settings) *int { return &s.Shell.MaxTotal },
			"Shell sessions on one host."),
		bind("guardrail.enabled", "BUTLER_GUARDRAIL_ENABLED", "true", boolean(),
			func(s *Settings) *bool { return &s.Shell.GuardEnabled },
			"The command guard. It can be turned off in single-user mode only; `butler doctor` warns then.", reloadable),
		bind("guardrail.danger_patterns", "BUTLER_DANGER_PATTERNS", "", list(plain(1, 256)),
			func(s *Settings) *[]string { return &s.Shell.DangerPatterns },
			"Texts whose occurrence in a command makes it be asked for, beside what the guard finds by itself.",
			several, reloadable, note("none")),

		bind("language", "BUTLER_LANGUAGE", "en", oneOf("en", "zh"),
			func(s *Settings) *string { return &s.Language },
			"Language for people who do not say theirs: en or zh."),

		bind("log.level", "LOG_LEVEL", "info", level(),
			func(s *Settings) *slog.Level { return &s.Log.Level },
			"Least level that is logged: debug, info, warn or error.", reloadable),
		bind("log.format", "BUTLER_LOG_FORMAT", "auto", oneOf("auto", "text", "json"),
			func(s *Settings) *string { return &s.Log.Format },
			"Form of the log on standard error: text, json, or auto (text on a terminal, else json)."),
		bind("telemetry.otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", "", link(false, "http", "https"),
			func(s *Settings) *string { return &s.Telemetry.OTLPEndpoint },
			"Base URL of an OTLP/HTTP collector for traces.", note("traces are not exported")),
	}
}

// defaultDataDir follows the XDG base directory specification, which says to ignore relative paths.
func defaultDataDir(env func(string) string) string {
	if dir := env("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "butler")
	}
	if home := env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "butler")
	}
	return ""
}
