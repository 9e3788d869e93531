// SPDX-License-Identifier: Apache-2.0
// Which calls of the system a session in a sandbox may not make: a filter for the kernel (seccomp). A denied call is
// EPERM, one that is newer than this file ENOSYS.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "session/sandbox.h"

namespace portcall::session {

#if defined(__x86_64__) || defined(__aarch64__)
namespace {

#ifdef __x86_64__
constexpr uint32_t kMachine = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t kMachine = AUDIT_ARCH_AARCH64;
#endif

constexpr uint32_t kNewest = 470;  // the first number that Linux 6.18 does not have; those of x32 are above, too
constexpr uint32_t kNewNamespaces = 0x7E020000, kParent = 0x8000;  // flags of clone
constexpr uint32_t kClone3 = 435, kFchmodat2 = 452;                // the C library falls back to older calls

// clang-format off
// Numbers from 424 on are those of every processor.
// Other processes.
constexpr uint32_t kProcesses[] = {SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_migrate_pages, SYS_move_pages, 424 /* pidfd_send_signal */,
    438 /* pidfd_getfd */, 440 /* process_madvise */, 448 /* process_mrelease */};
// The network; socketpair is below.
constexpr uint32_t kSockets[] = {SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4};
// Mounts, namespaces, and files by other ways than their paths.
constexpr uint32_t kMounts[] = {SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns,
    SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_quotactl, 428 /* open_tree */, 429 /* move_mount */,
    430 /* fsopen */, 431 /* fsconfig */, 432 /* fsmount */, 433 /* fspick */, 442 /* mount_setattr */,
    443 /* quotactl_fd */, 457 /* statmount */, 458 /* listmount */, 467 /* open_tree_attr */};
// Attributes of files, which Landlock leaves alone, and watching them.
constexpr uint32_t kAttributes[] = {SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr,
    SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_utimensat, 463 /* setxattrat */,
    466 /* removexattrat */, 469 /* file_setattr */, SYS_inotify_init1, SYS_fanotify_init, SYS_fanotify_mark};
// The kernel.
constexpr uint32_t kKernel[] = {SYS_keyctl, SYS_add_key, SYS_request_key, SYS_bpf, SYS_userfaultfd,
    SYS_perf_event_open, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_swapon,
    SYS_swapoff, SYS_acct, SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
    SYS_sethostname, SYS_setdomainname, SYS_vhangup, SYS_personality, SYS_lookup_dcookie, SYS_nfsservctl,
    425 /* io_uring_setup */, 426 /* io_uring_enter */, 427 /* io_uring_register */, 460 /* lsm_set_self_attr */};
#ifdef __x86_64__
// Older calls.
constexpr uint32_t kOlder[] = {SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat,
    SYS_inotify_init, SYS_modify_ldt, SYS_iopl, SYS_ioperm, 320 /* kexec_file_load */};
#else
constexpr uint32_t kOlder[] = {294 /* kexec_file_load */};
#endif
// clang-format on

// Named processes, which only a session that is not alone could reach; 0 is the caller.
constexpr uint32_t kOfProcess[] = {SYS_prlimit64, SYS_sched_setaffinity, SYS_sched_setscheduler, SYS_sched_setparam,
                                   SYS_sched_setattr};

// Of files that are open for reading: ioctl.
constexpr uint32_t kSetFlags = 0x40086602, kSetExtendedFlags = 0x401C5820, kSetVersion = 0x40087602,
                   kSetExt4Version = 0x40086604, kSeal = 0x40806685, kEncrypt = 0x800C6613, kSnapshot = 0x50009401,
                   kSnapshot2 = 0x50009417;
// fcntl: others wait until they may open the file, for 45 s; a signal for each use of a folder; room of a pipe that
// others write to, too.
constexpr uint32_t kLease = 1024, kWatch = 1026, kPipeSize = 1031, kDelegation = 1040;

using Steps = std::vector<sock_filter>;

sock_filter Step(int code, uint32_t value, uint8_t yes = 0, uint8_t no = 0) {
  return {static_cast<uint16_t>(code), yes, no, value};
}
sock_filter Load(size_t offset) { return Step(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
sock_filter Return(uint32_t what) { return Step(BPF_RET | BPF_K, what); }
// Leaves out `same` steps where the value is this one, else `other`.
sock_filter Unless(uint32_t value, uint8_t same, uint8_t other) {
  return Step(BPF_JMP | BPF_JEQ | BPF_K, value, same, other);
}

// What is done for each call that has a rule; all others are allowed. The kernel runs the filter for every number there
// is when it takes it, so the rule of a number is searched in halves.
class Filter {
 public:
  void Deny(uint32_t call, uint32_t answer = kNo) { RuleOf(call).push_back(Return(answer)); }
  // Denies a call with an argument that is none of the values, or one of them. Both processors are little-endian: the low
  // half of an argument comes first.
  void AllowOnly(uint32_t call, int argument, std::initializer_list<uint32_t> values, uint32_t mask = ~0u,
                 bool high = false) {
    Steps& steps = LoadArgument(call, argument, high);
    steps.push_back(Step(BPF_ALU | BPF_AND | BPF_K, mask));
    auto left = static_cast<uint8_t>(values.size());
    for (uint32_t value : values) steps.push_back(Unless(value, left--, 0));
    steps.push_back(Return(kNo));
  }
  void AllowNull(uint32_t call, int argument) {
    AllowOnly(call, argument, {0});
    AllowOnly(call, argument, {0}, ~0u, true);
  }
  void DenyOnly(uint32_t call, int argument, std::initializer_list<uint32_t> values) {
    Steps& steps = LoadArgument(call, argument, false);
    for (uint32_t value : values) {
      steps.push_back(Unless(value, 0, 1));
      steps.push_back(Return(kNo));
    }
  }

  Steps Program() {
    Steps steps = {Load(offsetof(seccomp_data, arch)),
                   Unless(kMachine, 1, 0),
                   Return(kUnknown),  // the calls of another processor, as by int 0x80
                   Load(offsetof(seccomp_data, nr)),
                   Step(BPF_JMP | BPF_JGE | BPF_K, kNewest, 0, 1),
                   Return(kUnknown)};
    std::sort(rules_.begin(), rules_.end(), [](const Rule& one, const Rule& other) { return one.call < other.call; });
    Search(rules_.data(), rules_.data() + rules_.size(), &steps);
    return steps;
  }

  static constexpr uint32_t kNo = SECCOMP_RET_ERRNO | EPERM, kUnknown = SECCOMP_RET_ERRNO | ENOSYS;

 private:
  struct Rule {
    uint32_t call;
    Steps steps;
  };

  Steps& RuleOf(uint32_t call) {
    for (Rule& rule : rules_) {
      if (rule.call == call) return rule.steps;
    }
    rules_.push_back({call, {}});
    return rules_.back().steps;
  }

  Steps& LoadArgument(uint32_t call, int argument, bool high) {
    Steps& steps = RuleOf(call);
    steps.push_back(Load(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(argument) + (high ? 4 : 0)));
    return steps;
  }

  static bool IsDenied(const Rule& rule) { return rule.steps.size() == 1 && rule.steps[0].k == kNo; }

  static void Search(const Rule* begin, const Rule* end, Steps* steps) {
    if (end - begin > 6) {
      const Rule* middle = begin + (end - begin) / 2;
      steps->push_back(Step(BPF_JMP | BPF_JGE | BPF_K, middle->call, 0, 1));
      const size_t jump = steps->size();
      steps->push_back(Step(BPF_JMP | BPF_JA, 0));
      Search(begin, middle, steps);
      (*steps)[jump].k = static_cast<uint32_t>(steps->size() - jump - 1);
      return Search(middle, end, steps);
    }
    uint8_t left = 0;
    for (const Rule* rule = begin; rule != end; ++rule) {
      if (IsDenied(*rule)) {
        ++left;
        continue;
      }
      steps->push_back(Unless(rule->call, 0, static_cast<uint8_t>(rule->steps.size() + 1)));
      for (const sock_filter& step : rule->steps) steps->push_back(step);
      steps->push_back(Return(SECCOMP_RET_ALLOW));
    }
    for (const Rule* rule = begin; rule != end; ++rule) {
      if (IsDenied(*rule)) steps->push_back(Unless(rule->call, left--, 0));
    }
    steps->push_back(Return(SECCOMP_RET_ALLOW));
    steps->push_back(Return(kNo));
  }

  std::vector<Rule> rules_;
};

}  // namespace

bool CanFilterCalls() { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0) != 0 && errno == EFAULT; }

Steps FilterOfCalls(bool alone, bool quiet) {
  Filter filter;
  for (uint32_t call : {kClone3, kFchmodat2}) filter.Deny(call, Filter::kUnknown);
  const auto deny = [&](const auto& calls) {
    for (uint32_t call : calls) filter.Deny(call);
  };
  deny(kProcesses);
  deny(kSockets);
  deny(kMounts);
  deny(kAttributes);
  deny(kKernel);
  deny(kOlder);
  // A datagram, which sendmsg sends, may name another socket; other families are other parts of the kernel.
  filter.AllowOnly(SYS_socketpair, 0, {AF_UNIX});
  filter.AllowOnly(SYS_socketpair, 1, {SOCK_STREAM, SOCK_SEQPACKET}, 0xF);
  filter.AllowNull(SYS_sendto, 4);
  filter.AllowOnly(SYS_clone, 0, {0}, kNewNamespaces | kParent);  // the parent is the server
  // What a terminal reads; attributes of files, which need no right to write; who gets the signals of a file.
  filter.DenyOnly(SYS_ioctl, 1,
                  {0x5412, 0x541C, kSetFlags, kSetExtendedFlags, kSetVersion, kSetExt4Version, kSeal, kEncrypt,
                   kSnapshot, kSnapshot2, 0x8901, 0x8902});
  filter.DenyOnly(SYS_fcntl, 1, {8, 15, kLease, kWatch, kPipeSize, kDelegation});
  if (!alone && !quiet) {
    const auto self = static_cast<uint32_t>(getpid());
    for (uint32_t call : {SYS_kill, SYS_tgkill}) filter.AllowOnly(call, 0, {0, self});
    filter.Deny(SYS_tkill);
  }
  if (!alone) {
    for (uint32_t call : kOfProcess) filter.AllowOnly(call, 0, {0});
    filter.AllowOnly(SYS_setpriority, 0, {0});
    filter.AllowOnly(SYS_ioprio_set, 0, {1});
    for (uint32_t call : {SYS_setpriority, SYS_ioprio_set}) filter.AllowOnly(call, 1, {0});
  }
  return filter.Program();
}

#else
bool CanFilterCalls() { return false; }
std::vector<sock_filter> FilterOfCalls(bool, bool) { return {}; }
#endif

bool FilterCalls(const std::vector<sock_filter>& filter) {
  const sock_fprog program{static_cast<unsigned short>(filter.size()), const_cast<sock_filter*>(filter.data())};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

}  // namespace portcall::session
