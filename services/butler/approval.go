package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	approvalservice "github.com/butlerhub/butler/services/approval"
)

func (a *app) approvalCommand() *cobra.Command {
	return a.serviceCommand("approval", "Run approval: policy, decisions, grants, audit",
		"Runs approval alone. All replicas need the same key (BUTLER_APPROVAL_KEY).",
		`  BUTLER_NATS_URL=nats://nats:4222 INTERNAL_SERVICE_TOKEN=… BUTLER_APPROVAL_ADDR=0.0.0.0:8094 \
    BUTLER_PEOPLE_TARGET=gateway:8095 BUTLER_SHELL_TARGETS=web1=web1:8096 butler approval`,
		func(ctx context.Context, p *process) error {
			s := p.settings
			if err := p.serveOps(); err != nil {
				return err
			}
			l, err := p.listen("BUTLER_APPROVAL_ADDR", s.RPC.ApprovalAddr)
			if err != nil {
				return err
			}
			server, err := p.rpcServer(false)
			if err != nil {
				return err
			}
			peopleConn, err := p.dial("gateway", s.RPC.PeopleTarget, nil)
			if err != nil {
				return err
			}
			shells, err := p.dialShells(nil, false)
			if err != nil {
				return err
			}
			b, err := p.connectBus(ctx, "approval", nil)
			if err != nil {
				return err
			}
			svc, err := p.startApproval(b, peopleConn, shells.Hosts)
			if err != nil {
				return err
			}
			svc.Register(server)
			p.start("rpc", func(ctx context.Context) error { return server.Serve(ctx, l) })
			p.log.Info("approval listens", "addr", l.Addr().String())
			return p.run(ctx)
		})
}

// startApproval puts approval together and starts it.
func (p *process) startApproval(b *bus.Bus, people grpc.ClientConnInterface, shells map[string]butlerv1.ShellServiceClient) (*approvalservice.Service, error) {
	signer, earlier, err := approvalSigner(p.settings)
	if err != nil {
		return nil, err
	}
	policy, err := approvalPolicy(p.settings)
	if err != nil {
		return nil, err
	}
	svc, err := approvalservice.New(approvalservice.Deps{
		Bus: b, People: butlerv1.NewPeopleServiceClient(people), Signer: signer, Earlier: earlier, Shells: shells, Policy: policy,
		Settings: approvalSettings(p.settings), Log: p.log, Metrics: p.tel.Registry,
	})
	if err != nil {
		return nil, err
	}
	p.check("approval", svc.Ready)
	p.onReload(func(next config.Settings, _ []string) error {
		// The file may have changed also when no setting has.
		policy, err := approvalPolicy(next)
		if err != nil {
			return err
		}
		svc.SetPolicy(policy)
		svc.SetSettings(approvalSettings(next))
		return nil
	})
	p.start("approval", svc.Run)
	return svc, nil
}

func approvalSettings(s config.Settings) approvalservice.Settings {
	return approvalservice.Settings{Timeout: s.Approval.Timeout, RunTimeout: s.Approval.RunTimeout}
}

// approvalPolicy reads the policy of the settings.
func approvalPolicy(s config.Settings) (*approvalservice.Policy, error) {
	file := s.Approval.PolicyFile
	if file == "" {
		return approvalservice.BuiltIn(), nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.Wrap(pathCause(err), fault.Invalid, "BUTLER_APPROVAL_POLICY: %s cannot be read", file)
	}
	policy, err := approvalservice.ParsePolicy(data)
	if err != nil {
		return nil, fault.New(fault.Invalid, "BUTLER_APPROVAL_POLICY: %s: %s", file, fault.MessageOf(err))
	}
	return policy, nil
}

// approvalSigner reads the signing key of the settings, making it when there is none. The file's first key signs; those
// behind it, private or public, have signed before.
func approvalSigner(s config.Settings) (signer *approval.Signer, earlier []ed25519.PublicKey, err error) {
	file := s.Approval.KeyFile
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = makeApprovalKey(file)
	}
	if err != nil {
		return nil, nil, fault.Wrap(pathCause(err), fault.Invalid, "BUTLER_APPROVAL_KEY: %s cannot be read or made", file)
	}
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, nil, fault.New(fault.Invalid, "BUTLER_APPROVAL_KEY: others can read %s, so its grants are worth nothing; "+
			"remove it to have a new key made, or chmod 600 it if nobody did", file)
	}
	for n := 1; ; n++ {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		var key any
		if block.Type == "PUBLIC KEY" {
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		} else {
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		}
		if err != nil {
			return nil, nil, fault.Wrap(err, fault.Invalid, "BUTLER_APPROVAL_KEY: key %d of %s is neither a private key (PKCS #8) nor a public one", n, file)
		}
		private, isPrivate := key.(ed25519.PrivateKey)
		public, isPublic := key.(ed25519.PublicKey)
		switch {
		case !isPrivate && !isPublic:
			return nil, nil, fault.New(fault.Invalid, "BUTLER_APPROVAL_KEY: key %d of %s is not Ed25519", n, file)
		case n == 1 && isPublic:
			return nil, nil, fault.New(fault.Invalid, "BUTLER_APPROVAL_KEY: the first key of %s signs and must be private", file)
		case n == 1:
			if signer, err = approval.NewSigner(private); err != nil {
				return nil, nil, err
			}
		case isPrivate:
			earlier = append(earlier, private.Public().(ed25519.PublicKey))
		default:
			earlier = append(earlier, public)
		}
	}
	if signer == nil {
		return nil, nil, fault.New(fault.Invalid, "BUTLER_APPROVAL_KEY: %s holds no PEM block", file)
	}
	return signer, earlier, nil
}

// makeApprovalKey writes a new key. Two processes that start at the same time get the same: only one of them can link its
// file to the name.
func makeApprovalKey(file string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".approval-key-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(file)
}
