#include "tapestry/apps/common/live_page.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "tapestry/apps/common/json_text.h"
#include "tapestry/apps/common/page/live/live.h"
#include "tapestry/apps/common/page_files.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"

namespace apps {

using namespace tapestry;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kJson = "application/json";
constexpr const char* kState = "live.json";
constexpr const char* kSamples = "samples.json";
constexpr const char* kFailure = "live/failure";  // in the job's store: the first error of a rank
constexpr std::chrono::milliseconds kInterval{250};
// The page has at most 900 kB.
constexpr std::size_t kMostEvaluated = 512, kTexts = 12, kLongestText = 4000, kLargestPicture = 150'000;

std::string array(const MemoryByKind& memory) {
  std::string out = "[";
  for (const std::int64_t bytes : memory) out += (out.size() > 1 ? "," : "") + std::to_string(bytes);
  return out + "]";
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

LivePage::LivePage(TrainingJob& job, const RunFolder& folder, LiveRun run)
    : job_(job), folder_(folder), run_(std::move(run)) {
  if (job.is_live()) hosts_ = distributed::all_gather_text(*job.group(), host_name(), "hosts");
  if (!job.is_live() || !job.first()) return;
  server_ = std::make_unique<PageServer>();
  job.after_agree([this] { collect(); });
  publish_samples();
  publish();
  server_->publish("", "text/html; charset=utf-8",
                   page_of(kLiveFiles, run_.title,
                           json_in_html("{\"live\":" + state() + ",\"samples\":" + samples() + "}")));
}

LivePage::~LivePage() {
  if (!server_) return;
  job_.after_agree({});
  if (state_ != "running") return;
  try {
    finish("failed", "the program ended with an error, which it printed");
  } catch (const std::exception&) {  // the error that ended the run is the one to report
  }
}

int LivePage::watch(const std::function<int()>& train) {
  try {
    return train();
  } catch (const std::exception& e) {
    if (job_.is_live()) failed(e);
    throw;
  }
}

void LivePage::failed(const std::exception& e) {
  const bool other = dynamic_cast<const distributed::DistributedError*>(&e) != nullptr;
  std::string message = e.what();
  if (!other && job_.size() > 1) message = concat({"rank ", job_.rank(), ": ", message});
  try {
    distributed::Store& store = job_.group()->store();
    if (!other) store.compare_set(kFailure, std::nullopt, message);
    // A rank that fails tells the others through the store before it leaves, which is what they notice.
    if (const auto first = other && server_ ? store.try_get(kFailure) : std::nullopt)
      message = *first + "\n" + message;
  } catch (const std::exception&) {  // without a store, the own error is all that is known
  }
  try {
    finish("failed", message);
  } catch (const std::exception&) {  // the error that ended the run is the one to report
  }
}

std::string LivePage::address() const {
  return server_ ? "live page: " + server_->url() + ", and " + folder_.file("live.html") : std::string();
}

void LivePage::earlier(const CurvePoint& point, double loss, double accuracy) {
  if (!server_) return;
  curve_.add(point);
  if (!std::isnan(loss)) keep({point.step, loss, accuracy});
}

void LivePage::step(const LiveStep& s) {
  if (!job_.is_live()) return;
  job_.share({.step = s.step, .loss = s.loss, .accuracy = s.accuracy, .step_s = s.seconds - seconds_});
  seconds_ = s.seconds;
  step_ = s.step;
  samples_of_step_ = s.samples;
}

// Adds the step that the last agree() told of. With several ranks it is the one before.
void LivePage::collect() {
  const std::vector<RankRow>& rows = job_.rows();
  if (rows.empty() || rows[0].step == 0) return;
  if (!curve_.points().empty() && rows[0].step <= curve_.points().back().step) return;
  CurvePoint p{
      .step = rows[0].step, .loss = 0, .accuracy = 0, .samples = static_cast<double>(samples_of_step_)};
  const auto total = [](const MemoryByKind& m) {
    return std::accumulate(m.begin(), m.end(), std::int64_t{0});
  };
  const auto keep_fuller = [&](const MemoryByKind& m) {
    if (total(m) > total(p.memory)) p.memory = m;
  };
  for (const RankRow& r : rows) {
    p.loss += r.loss / job_.strategy().loss_parts();
    p.accuracy += r.accuracy / static_cast<double>(rows.size());
    p.seconds = std::max(p.seconds, r.step_s);
    keep_fuller(r.memory);
  }
  if (job_.size() == 1) std::for_each(job_.memory().begin(), job_.memory().end(), keep_fuller);
  p.low = p.high = p.loss;
  curve_.add(p);
  if (Clock::now() - published_ >= kInterval) publish();
}

void LivePage::keep(const Evaluated& e) {
  if (evaluated_.size() == kMostEvaluated) {
    for (std::size_t i = 0; i < kMostEvaluated / 2; ++i) evaluated_[i] = evaluated_[2 * i + 1];
    evaluated_.resize(kMostEvaluated / 2);
  }
  evaluated_.push_back(e);
}

void LivePage::evaluated(std::int64_t step, double loss, double accuracy) {
  if (!server_) return;
  keep({step, loss, accuracy});
  publish();
  write_file();
}

void LivePage::text_sample(std::int64_t step, const std::string& text) {
  if (!server_) return;
  samples_.push_back({step, "", text.substr(0, kLongestText), ""});
  if (samples_.size() > kTexts) samples_.erase(samples_.begin());
  publish_samples();
  publish();
  write_file();
}

void LivePage::picture(std::int64_t step, const std::string& title, const std::string& svg) {
  if (!server_ || json_in_html(json_string(svg)).size() > kLargestPicture) return;
  std::erase_if(samples_, [&](const Sample& s) { return s.title == title; });
  samples_.push_back({step, title, "", svg});
  publish_samples();
}

void LivePage::finish(const std::string& state, const std::string& message) {
  if (!server_) return;
  state_ = state;
  message_ = message.substr(0, kLongestText);
  const bool has_reader =
      server_->answered(kState) > answered_ || Clock::now() - asked_ < std::chrono::seconds(10);
  publish();
  const std::int64_t before = server_->answered(kState);
  write_file();
  const Clock::time_point end = Clock::now() + std::chrono::seconds(4);  // it asks each second
  // The page asks for samples when it sees in the state that there are others.
  while (has_reader &&
         (server_->answered(kState) == before || server_->answered(kSamples) == samples_answered_) &&
         Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

std::string LivePage::samples() const {
  std::string out = "[";
  for (const Sample& s : samples_)
    out += concat({out.size() > 1 ? "," : "", "{\"step\":", s.step, ",\"title\":", json_string(s.title),
                   s.svg.empty() ? ",\"text\":" : ",\"svg\":", json_string(s.svg.empty() ? s.text : s.svg),
                   "}"});
  return out + "]";
}

std::string LivePage::state() const {
  std::string out = concat({"{\"schema\":1,\"changes\":",
                            changes_,
                            ",\"sample_changes\":",
                            sample_changes_,
                            ",\"program\":",
                            json_string(run_.program),
                            ",\"title\":",
                            json_string(run_.title),
                            ",\"unit\":",
                            json_string(run_.unit),
                            ",\"held_out\":",
                            json_string(run_.held_out),
                            ",\"steps\":",
                            run_.steps,
                            ",\"step\":",
                            step_,
                            ",\"epoch_steps\":",
                            run_.epoch_steps,
                            ",\"state\":",
                            json_string(state_),
                            ",\"message\":",
                            json_string(message_),
                            ",\"folder\":",
                            json_string(folder_.path()),
                            ",\"seconds\":",
                            json_number(seconds_),
                            ",\"facts\":["});
  const auto list = [&](const char* name, const auto& items, const auto& text) {
    out += std::string("],\"") + name + "\":[";
    for (std::size_t i = 0; i < items.size(); ++i) out += (i ? "," : "") + text(items[i], i);
  };
  for (std::size_t i = 0; i < run_.facts.size(); ++i)
    out += concat(
        {i ? "," : "", "[", json_string(run_.facts[i].first), ",", json_string(run_.facts[i].second), "]"});
  std::vector<MemoryKind> kinds(kNumMemoryKinds);
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = static_cast<MemoryKind>(i);
  list("kinds", kinds, [](MemoryKind kind, std::size_t) { return json_string(memory_kind_name(kind)); });
  list("points", curve_.points(), [](const CurvePoint& p, std::size_t) {
    return concat({"[", p.step, ",", json_number(p.loss), ",", json_number(p.low), ",", json_number(p.high),
                   ",", json_number(p.accuracy), ",", json_number(p.samples / p.seconds), ",",
                   array(p.memory), "]"});
  });
  list("evaluated", evaluated_, [](const Evaluated& e, std::size_t) {
    return concat({"[", e.step, ",", json_number(e.loss), ",", json_number(e.accuracy), "]"});
  });
  // A process that is alone has a row for each of its devices.
  std::vector<RankRow> rows = job_.rows();
  const bool alone = job_.size() == 1;
  if (alone && !rows.empty()) {
    rows.resize(job_.memory().size(), rows[0]);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].memory = job_.memory()[i];
  }
  list("rows", rows, [&](const RankRow& r, std::size_t i) {
    const std::string name = alone ? job_.strategy().devices().at(i).str() : concat({"rank ", i});
    const bool has_loss = alone || is_first_stage(static_cast<int>(i));
    return concat({"{\"name\":", json_string(name), ",\"host\":", json_string(hosts_.at(alone ? 0 : i)),
                   ",\"step\":", r.step, ",\"has_loss\":", has_loss ? "true" : "false",
                   ",\"loss\":", json_number(r.loss), ",\"accuracy\":", json_number(r.accuracy),
                   ",\"step_ms\":", json_number(r.step_s * 1e3),
                   ",\"waiting_ms\":", json_number(r.waiting_s * 1e3), ",\"memory\":", array(r.memory), "}"});
  });
  return out + "]}";
}

// Of the stages of a pipeline over ranks, only the first one has the loss.
bool LivePage::is_first_stage(int rank) const {
  const bool splits = job_.strategy().stages() > 0;
  return !splits || job_.strategy().random_place(rank).stage == 0;
}

void LivePage::publish() {
  ++changes_;
  published_ = Clock::now();
  if (const std::int64_t now = server_->answered(kState); now > answered_)
    answered_ = now, asked_ = published_;
  server_->publish(kState, kJson, state());
}

void LivePage::publish_samples() {
  ++sample_changes_;
  server_->publish(kSamples, kJson, samples());
  samples_answered_ = server_->answered(kSamples);
}

void LivePage::write_file() const {
  folder_.write("live.html",
                page_of(kLiveFiles, run_.title,
                        json_in_html("{\"live\":" + state() + ",\"samples\":" + samples() + "}")));
}

}  // namespace apps
