// SPDX-License-Identifier: Apache-2.0
#include "board/farm/agent.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <memory>

#include "board/clock.h"
#include "board/directories.h"
#include "board/farm/channel.h"
#include "board/farm/gate.h"
#include "board/farm/hook.h"
#include "board/secrets.h"
#include "facts/farm.h"
#include "session/hello.h"

namespace portcall::board {
namespace {

constexpr double kLook = 0.02;  // seconds until a hook that has closed its output is looked at again

std::string Number(double value) {
  char text[32];
  snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

using Fields = std::vector<std::pair<const char*, std::string>>;  // names, with values as JSON

std::string Object(const Fields& fields) {
  std::string text = "{";
  for (const auto& [name, value] : fields) {
    text.append(text.size() > 1 ? ", " : "").append(Quoted(name)).append(": ").append(value);
  }
  return text + "}";
}

// The value of a tag as JSON: numbers are numbers.
std::string TagValue(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool plain = text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  return !text.empty() && !*end && plain && number - number == 0 ? Number(number) : Quoted(text);
}

// What this machine is, and the labels that were given.
std::string Tags(const std::vector<std::string>& given) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  const double ram = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  utsname system{};
  uname(&system);
  char libc[64] = "";
#ifdef _CS_GNU_LIBC_VERSION
  confstr(_CS_GNU_LIBC_VERSION, libc, sizeof(libc));
#endif
  std::map<std::string, std::string> tags = {{"cores", std::to_string(CPU_COUNT(&cores))},
                                             {"ram", Number(ram)},
                                             {"arch", Quoted(system.machine)},
                                             {"os", "\"linux\""},
                                             {"kernel", Quoted(system.release)},
                                             {"libc", Quoted(libc)},
                                             {"host", Quoted(system.nodename)},
                                             {"portcall", Quoted(PORTCALL_VERSION)}};
  for (const std::string& tag : given) {
    const size_t equals = tag.find('=');
    tags[tag.substr(0, equals)] = equals == std::string::npos ? "true" : TagValue(tag.substr(equals + 1));
  }
  Fields fields;
  for (const auto& [name, value] : tags) fields.emplace_back(name.c_str(), value);
  return Object(fields);
}

struct Order {
  std::string what, key, lease, user;
  int64_t fence = 0;
  double limit = 0;
  bool relay = false;  // its client comes through the farm
};

// Throws ValueError for an order that cannot be carried out; what was read before is in `order`.
void ReadOrder(const Json& json, Order* order) {
  order->what = json.At("do", "an order").Text("do");
  order->fence = json.At("fence", "an order").Integer("fence");
  const auto text = [&](const char* name) {
    const Json* found = json.Find(name, "an order");
    std::string value = found ? found->Text(name) : "";
    PORTCALL_CHECK(value.find('\0') == std::string::npos, ValueError) << name << ": it has a zero byte";
    return value;
  };
  order->key = text("key");
  order->lease = text("lease");
  order->user = text("user");
  if (const Json* limit = json.Find("limit", "an order")) order->limit = limit->Number("limit");
  PORTCALL_CHECK(order->limit >= 0 && order->limit < 1e10, ValueError) << "its limit is no time";
  const Json* relay = json.Find("relay", "an order");
  order->relay = relay && relay->True();
  const bool end = order->what == kOrderEnd, known = end || order->what == kOrderOffer || order->what == kOrderAdmit;
  PORTCALL_CHECK(known, ValueError) << "there is no order '" << order->what.substr(0, 40) << "'";
  const bool key = !order->key.empty() && order->key.find_first_of(kBlanks) == std::string::npos;
  PORTCALL_CHECK(end || key, ValueError) << "its key is none";
}

class Agent {
 public:
  Agent(int link, AgentTask task, LogStyle style, std::string_view token)
      : link_(link),
        task_(std::move(task)),
        options_(*task_.options),
        style_(style),
        orders_(options_.farm, token),
        reports_(options_.farm, token) {}

  void Run() {
    while (!stopping_) {
      try {
        Step();
      } catch (const Error& error) {
        Away(std::string(error.message()));
      }
    }
    Leave();
  }

 private:
  struct Relay {  // a connection that has no client yet
    Descriptor socket;
    int64_t fence;
  };
  struct Work {  // commands before or after a lease
    Order order;
    std::vector<std::string> next;
    std::unique_ptr<Hook> hook;  // the one that runs
  };

  void Step() {
    OnHooks();
    if (!orders_.asking() && Now() >= after_) Ask();
    if (registered() && !reports_.asking() && !waiting_.empty()) Report();
    std::vector<pollfd> polled = {{link_, POLLIN, 0}};
    double next = Now() + kHold;
    for (FarmChannel* channel : {&orders_, &reports_}) {
      polled.push_back({channel->asking() ? channel->fd() : -1, POLLIN, 0});
      if (channel->asking()) next = std::min(next, channel->deadline());
    }
    if (!orders_.asking()) next = std::min(next, after_);
    for (const Relay& relay : relays_) polled.push_back({relay.socket.get(), POLLIN, 0});
    if (!works_.empty()) {
      const Hook& hook = *works_.front().hook;
      polled.push_back({hook.fd(), POLLIN, 0});
      next = std::min(next, hook.fd() < 0 ? Now() + kLook : hook.deadline());
    }
    const int wait = static_cast<int>(std::max(0.0, next - Now()) * 1000) + 1;
    if (poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR) throw SystemError("cannot wait");
    if (polled[0].revents) OnServer();
    OnRelays();
    FarmAnswer answer;
    if (orders_.asking() && orders_.Receive(&answer)) OnOrders(answer);
    if (reports_.asking() && reports_.Receive(&answer)) OnReported(answer);
  }

  bool registered() const { return !agent_.empty(); }

  // ---- The farm ----

  Fields Command(const char* what) const {
    Fields fields = {{"do", Quoted(what)}, {"user", "\"board\""}, {"place", Quoted(options_.place)}};
    if (registered()) fields.emplace_back("agent", Quoted(agent_));
    return fields;
  }

  void Ask() {
    asked_ = Now();
    Fields command = Command(registered() ? "next" : "register");
    if (registered()) {
      command.emplace_back("hold", Number(kHold));
      command.emplace_back("done", List(done_));
      orders_.Ask(Object(command), kHold);
      done_.clear();
      return;
    }
    orders_.Connect();
    std::vector<std::string> sessions;
    for (const auto& [number, fence] : task_.open) sessions.push_back(Quoted(std::to_string(number)));
    const bool relayed = Relayed();
    command.emplace_back("keys", List({Quoted(options_.key)}));
    command.emplace_back("tags", Tags(options_.tags));
    const auto& [host, port] = options_.custom_addr;
    command.emplace_back("host", Quoted(!host.empty() ? host : relayed ? "" : Host()));
    command.emplace_back("port", !port.empty() ? port : std::to_string(relayed ? 0 : task_.port));
    command.emplace_back("fence", std::to_string(task_.fence));
    command.emplace_back("sessions", List(sessions));
    command.emplace_back("instance", Quoted(task_.instance));
    command.emplace_back("patience", Number(Patience()));
    orders_.Ask(Object(command), 0);
  }

  static std::string List(const std::vector<std::string>& values) { return "[" + Join(values) + "]"; }

  // Seconds that the hooks on one side of a lease may take.
  double Patience() const {
    const int before = !options_.check.empty() + !options_.prepare.empty(), after = !options_.clean.empty();
    return options_.hook_limit * std::max(before, after);
  }

  // Whether clients come through the farm, over connections that we make.
  bool Relayed() const {
    const auto& [host, port] = options_.custom_addr;
    if (!host.empty()) return port.empty() && task_.host.empty();
    return options_.relay || task_.host.empty() || (IsLoopback(task_.host) && !IsLoopback(orders_.host()));
  }

  std::string Host() const { return task_.host == "0.0.0.0" || task_.host == "::" ? orders_.LocalHost() : task_.host; }

  void OnOrders(const FarmAnswer& answer) {
    if (!Understood(answer)) return;
    if (!registered()) {
      agent_ = answer.Word("agent");
      PORTCALL_CHECK(registered(), OSError) << orders_.address() << " is not a farm";
      Log(style_).Write(Event::kFarm, "registered with the farm " + orders_.address() + " as " + options_.place);
      task_.served = true;
      Tell(GateMessage(GateMessage::kRegistered, 0, 0));
      return;
    }
    const std::vector<Json>& orders = answer.body.At("orders", "the answer").List("orders");
    for (const Json& order : orders) Take(order);
    if (orders.empty() && Now() < asked_ + kFirstPause) after_ = Now() + kFirstPause;  // it holds no answer back
    if (Now() > said_at_ + kLongestPause) said_.clear();
    pause_ = kFirstPause;
  }

  void OnReported(const FarmAnswer& answer) {
    if (answer.status < 500) {  // heard, or refused: then the farm hears all when we register
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(reporting_));
    }
    reporting_ = 0;
    Understood(answer);
  }

  // False where the farm does not know us any more, or refuses our token, which ends this place. Throws what may pass.
  bool Understood(const FarmAnswer& answer) {
    if (answer.status == 200) return true;
    const std::string reason = answer.Word("reason");
    const bool token = answer.status == 401 && reason == "token", forgotten = reason == "register";
    if (forgotten && pause_ == kFirstPause) {  // it started again, or had given us up
      orders_.Close();
      agent_.clear();
      done_.clear();
      pause_ *= 2;
      return false;
    }
    std::string text = "the farm " + orders_.address() + " answered with status " + std::to_string(answer.status) +
                       ": " + answer.Word("error");
    const bool taken = reason == "taken" && !task_.served && Now() > begin_ + kTaken;
    PORTCALL_CHECK(token || taken || (answer.status == 403 && reason == "role"), OSError) << text;
    GateMessage message(GateMessage::kFailed, 0, 0);
    if (token) text += "; give its token by --token-file or PORTCALL_FARM_TOKEN (portcall farm token)";
    message.SetText(text);
    Tell(message);
    stopping_ = true;
    return false;
  }

  // Logs trouble with the farm, unless it is the same as before.
  void Complain(const std::string& why) {
    if (why == said_) return;
    said_ = why;
    said_at_ = Now();
    Log(style_).Write(Event::kFarm, why);
  }

  void Away(const std::string& why) {
    orders_.Close();
    reports_.Close();
    reporting_ = 0;
    agent_.clear();
    done_.clear();
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const double random = 0.8 + 0.4 * static_cast<double>(now.tv_nsec / 1000 % 1000) / 1000;
    Complain(why + "; trying again");
    after_ = Now() + pause_ * random;
    pause_ = std::min(pause_ * 2, kLongestPause);
  }

  void Report() {
    reporting_ = waiting_.size();
    Fields command = Command("report");
    command.emplace_back("done", List({waiting_.begin(), waiting_.end()}));
    reports_.Ask(Object(command), 0);
  }

  void Leave() {
    if (!registered()) return;
    try {
      reports_.Close();
      reports_.Ask(Object(Command("leave")), 0);
      FarmAnswer answer;
      while (reports_.asking() && !reports_.Receive(&answer)) {
        pollfd event{reports_.fd(), POLLIN, 0};
        poll(&event, 1, 1000);
      }
    } catch (const Error&) {
      return;  // the farm is away, and finds out
    }
  }

  // ---- Orders ----

  // What cannot be done is declined.
  void Take(const Json& json) {
    Order order;
    try {
      ReadOrder(json, &order);
    } catch (const Error& error) {
      const std::string why = "an order of the farm cannot be carried out: " + std::string(error.message());
      Complain(why);
      if (order.what == kOrderOffer) done_.push_back(Done(kReportDeclined, order, "why", why));
      return;
    }
    if (!order.lease.empty()) leases_[order.fence] = order;
    Obey(order);
  }

  void Obey(const Order& order) {
    if (order.what == kOrderOffer && !(options_.check.empty() && options_.prepare.empty())) {
      std::vector<std::string> commands;
      for (const std::string* command : {&options_.check, &options_.prepare}) {
        if (!command->empty()) commands.push_back(*command);
      }
      return works_.push_back({order, std::move(commands), nullptr});
    }
    if (order.what == kOrderOffer || order.what == kOrderAdmit) return done_.push_back(Admit(order));
    if (order.what != kOrderEnd) return;
    over_ = std::max(over_, order.fence);
    relays_.remove_if([&](const Relay& relay) { return relay.fence <= order.fence; });
    Tell(GateMessage(GateMessage::kEndLease, 0, order.fence));
  }

  static std::string Done(std::string_view what, const Order& order, const char* name, const std::string& value) {
    return Object({{"what", Quoted(what)}, {"fence", std::to_string(order.fence)}, {name, Quoted(value)}});
  }

  // Lets the client of an order in, unless the place is not fit for a new lease; returns the report.
  std::string Admit(const Order& order) {
    const bool offer = order.what == kOrderOffer;
    std::string trouble = offer ? Trouble() : "";
    GateMessage message(GateMessage::kAdmit, 0, order.fence);
    message.limit = order.limit;
    if (!message.SetText(order.key)) trouble = "the key of its client is too long";
    try {
      if (trouble.empty()) {
        task_.fence = std::max(task_.fence, order.fence);
        Tell(message);
        if (order.relay || Relayed()) ConnectRelay(order);
      }
    } catch (const Error& error) {
      trouble = std::string(error.message());
    }
    if (!trouble.empty()) return Done(kReportDeclined, order, "why", trouble);
    return Done(offer ? kReportAccepted : kReportAdmitted, order, "key", order.key);
  }

  // Why this place cannot be used, as far as it is known at once.
  std::string Trouble() const {
    const std::string folder = PlaceOf(options_.work_dir);
    struct statvfs disk{};
    if (statvfs(folder.c_str(), &disk) != 0) return "cannot look at " + folder + ": " + strerror(errno);
    const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
    return free < kLeastDisk ? "only " + std::to_string(free) + " bytes are free in " + folder : "";
  }

  // Makes a connection over which the farm passes the client of this order.
  void ConnectRelay(const Order& order) {
    Relay relay{orders_.ConnectAgain(), order.fence};
    const std::string hello = Reply(order.key, {{"portcall", std::to_string(kExtensionVersion)}, {"relay", "1"}});
    if (send(relay.socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size())) {
      throw SystemError("the farm takes no connection");
    }
    relays_.push_back(std::move(relay));
  }

  // Hands connections to the server whose clients have said something.
  void OnRelays() {
    relays_.remove_if([&](const Relay& relay) {
      char first;
      const ssize_t n = recv(relay.socket.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (n > 0) SendOnLink(link_, GateMessage(GateMessage::kAdopt, 0, relay.fence), relay.socket.get(), 0);
      return true;
    });
  }

  // ---- Hooks ----

  // Runs the commands of a place one after the other, and reports. An offer that is over by then gets no answer.
  void OnHooks() {
    while (!works_.empty()) {
      Work& work = works_.front();
      const bool clean = work.order.what == "clean", over = !clean && work.order.fence <= over_;
      std::string why;
      if (work.hook && !work.hook->Ended(&why)) return;
      if (why.empty() && !over && !work.next.empty() && StartHook(&work, &why)) return;
      if (clean) waiting_.push_back(Done(kReportCleaned, work.order, "why", why));
      else if (!over)
        waiting_.push_back(why.empty() ? Admit(work.order) : Done(kReportDeclined, work.order, "why", why));
      works_.pop_front();
    }
  }

  // Starts the next command; false if it does not start, with the reason.
  bool StartHook(Work* work, std::string* why) {
    const Order& order = work->order;
    const Hook::Variables variables = {
        {"PORTCALL_PLACE", options_.place}, {"PORTCALL_USER", order.user}, {"PORTCALL_LEASE_ID", order.lease}};
    try {
      work->hook = std::make_unique<Hook>(work->next.front(), options_.hook_limit, variables);
      work->next.erase(work->next.begin());
      return true;
    } catch (const Error& error) {
      *why = error.message();
      return false;
    }
  }

  // ---- The server ----

  void Tell(const GateMessage& message) { SendOnLink(link_, message, -1, 0); }

  void OnServer() {
    GateMessage message;
    Descriptor none;
    const ssize_t size = ReceiveFromLink(link_, &message, &none, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size != sizeof(message)) {  // it was killed; the farm notices that we are gone
      works_.clear();
      _exit(1);
    }
    const std::string session = std::to_string(message.session);
    Order order;
    order.fence = message.fence;
    if (message.kind == GateMessage::kOpened) {
      task_.open[message.session] = message.fence;
      waiting_.push_back(Done(kReportOpened, order, "session", session));
    } else if (message.kind == GateMessage::kClosed) {
      task_.open.erase(message.session);
      const std::string fence = std::to_string(message.fence);
      waiting_.push_back(Object({{"what", Quoted(kReportClosed)},
                                 {"fence", fence},
                                 {"session", Quoted(session)},
                                 {"why", Quoted(message.text)}}));
    } else if (message.kind == GateMessage::kLeaseEnded) {
      if (Patience() > 0) waiting_.push_back(Done(kReportEnded, order, "why", ""));
      for (; !leases_.empty() && leases_.begin()->first <= message.fence; leases_.erase(leases_.begin())) {
        order = leases_.begin()->second;
      }
      order.what = "clean";
      order.fence = message.fence;
      const bool runs = !options_.clean.empty() && message.fence > cleaned_;
      works_.push_back({order, runs ? std::vector<std::string>{options_.clean} : std::vector<std::string>{}, nullptr});
      cleaned_ = std::max(cleaned_, message.fence);
    } else if (message.kind == GateMessage::kStop) {
      stopping_ = true;
    }
  }

  const int link_;
  AgentTask task_;
  const Options& options_;
  const LogStyle style_;
  FarmChannel orders_, reports_;
  std::string agent_;                // the farm's word for us; empty while we are not registered
  std::vector<std::string> done_;    // answers to orders, for the next question
  std::deque<std::string> waiting_;  // reports, of which the farm is being told the first ones
  size_t reporting_ = 0;
  std::list<Relay> relays_;
  std::list<Work> works_;            // the first one runs
  std::map<int64_t, Order> leases_;  // what the farm said of each lease that is here, by fence
  int64_t cleaned_ = 0;              // the fence of the last lease after which the command was to be started
  int64_t over_ = 0;                 // the farm has ended the leases up to this fence
  const double begin_ = Now();
  double after_ = 0, pause_ = kFirstPause, asked_ = 0;
  std::string said_;  // the last trouble with the farm that was logged, and when
  double said_at_ = 0;
  bool stopping_ = false;
};

}  // namespace

void RunAgent(const Descriptor& link, AgentTask task, LogStyle style) {
  char secrets[kLongestToken + kInstance];
  const ssize_t size = recv(link.get(), secrets, sizeof(secrets), 0);
  if (size < static_cast<ssize_t>(kInstance)) return;
  const size_t token = static_cast<size_t>(size) - kInstance;
  task.instance.assign(secrets + token, kInstance);
  Agent(link.get(), std::move(task), style, std::string_view(secrets, token)).Run();
}

}  // namespace portcall::board
