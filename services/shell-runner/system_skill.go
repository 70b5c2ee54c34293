package shell

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// systemSkill tells how the host does, from /proc and the file system; it starts no program.
type systemSkill struct {
	root string // /proc
}

// Name names the skill.
func (systemSkill) Name() string { return "system" }

// Triggers are as published.
func (systemSkill) Triggers() []string { return []string{"/sys", "/system", "/load"} }

// Description is for /help.
func (systemSkill) Description(language string) string {
	return say(language, "load, memory, disk and uptime of the host", "主机的负载、内存、磁盘和运行时间")
}

// Execute answers with the figures of now; /load with those of the load alone.
func (k systemSkill) Execute(_ context.Context, in SkillContext) (SkillResult, error) {
	load, err := k.load()
	if err != nil {
		return SkillResult{}, fault.Wrap(err, fault.Unavailable, "%s", say(in.Language, "this system does not tell its load in /proc", "本系统的 /proc 不提供负载信息"))
	}
	rows := [][2]string{{say(in.Language, "load (1, 5, 15 min)", "负载（1、5、15 分钟）"), fmt.Sprintf("%s (%d CPU)", strings.Join(load, ", "), runtime.NumCPU())}}
	if in.Trigger == "/load" {
		return SkillResult{Text: table(rows)}, nil
	}
	if total, available, err := k.memory(); err == nil {
		rows = append(rows, [2]string{say(in.Language, "memory", "内存"), usage(in.Language, total-available, total)})
	}
	disks := []string{"/"}
	if in.Dir != "" && !sameDisk("/", in.Dir) {
		disks = append(disks, in.Dir)
	}
	for _, path := range disks {
		var fs syscall.Statfs_t
		if syscall.Statfs(path, &fs) == nil {
			unit := uint64(fs.Bsize) //nolint:unconvert // its type differs between systems
			total, free := fs.Blocks*unit, fs.Bavail*unit
			rows = append(rows, [2]string{say(in.Language, "disk ", "磁盘 ") + "`" + path + "`", usage(in.Language, total-fs.Bfree*unit, total) +
				", " + fmt.Sprintf(say(in.Language, "%s free", "可用 %s"), size(free))})
		}
	}
	if up, err := k.uptime(); err == nil {
		rows = append(rows, [2]string{say(in.Language, "up", "已运行"), span(up)})
	}
	return SkillResult{Text: "**" + in.Host + "**\n" + table(rows)}, nil
}

func (k systemSkill) fields(file string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(k.root, file))
	f := strings.Fields(string(data))
	if err == nil && len(f) < 2 {
		err = fmt.Errorf("%s is odd", file)
	}
	return f, err
}

func (k systemSkill) load() ([]string, error) {
	f, err := k.fields("loadavg")
	if err != nil {
		return nil, err
	}
	return f[:min(3, len(f))], nil
}

func (k systemSkill) uptime() (time.Duration, error) {
	f, err := k.fields("uptime")
	if err != nil {
		return 0, err
	}
	seconds, err := strconv.ParseFloat(f[0], 64)
	return time.Duration(seconds) * time.Second, err
}

// memory gives bytes.
func (k systemSkill) memory() (total, available uint64, err error) {
	f, err := k.fields("meminfo")
	for i := 0; i+1 < len(f); i++ {
		n, _ := strconv.ParseUint(f[i+1], 10, 64)
		switch f[i] {
		case "MemTotal:":
			total = n << 10
		case "MemAvailable:":
			available = n << 10
		}
	}
	if err == nil && (total == 0 || available > total) {
		err = fmt.Errorf("meminfo is odd")
	}
	return total, available, err
}

func sameDisk(a, b string) bool {
	var x, y syscall.Stat_t
	return syscall.Stat(a, &x) == nil && syscall.Stat(b, &y) == nil && x.Dev == y.Dev
}

func usage(language string, used, total uint64) string {
	percent := 0.0
	if total > 0 {
		percent = 100 * float64(used) / float64(total)
	}
	return fmt.Sprintf(say(language, "%s of %s used (%.0f %%)", "已用 %s / 共 %s（%.0f %%）"), size(used), size(total), percent)
}

func size(bytes uint64) string {
	v, unit := float64(bytes), 0
	for v >= 1024 && unit < 5 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %s", v, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}[unit])
}

func span(d time.Duration) string {
	if days := int(d.Hours()) / 24; days > 0 {
		return fmt.Sprintf("%d d %d h", days, int(d.Hours())%24)
	}
	return d.Round(time.Minute).String()
}
