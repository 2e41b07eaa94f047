#include "tapestry/nn/watch/summary_writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/nn/watch/internal/event_file.h"
#include "tapestry/nn/watch/png.h"

namespace tapestry::watch {
namespace {

using Clock = std::chrono::steady_clock;

// The numbers of the fields in event.proto and summary.proto of TensorFlow.
namespace event {
constexpr int wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace value {
constexpr int tag = 1, simple_value = 2, image = 4, histogram = 5, tensor = 8, metadata = 9;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Message new_event(std::int64_t step) {
  return Message().real(event::wall_time, wall_time()).integer(event::step, static_cast<std::uint64_t>(step));
}

// events.out.tfevents.<seconds>.<host>.<process>.<number>: TensorBoard looks for "tfevents" in the name and
// reads the files of a folder in the order of their names.
std::string file_name(const std::string& suffix) {
  static std::atomic<int> files{0};
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(wall_time()));
  return std::string("events.out.tfevents.") + seconds + "." + host + "." + std::to_string(getpid()) + "." +
         std::to_string(files.fetch_add(1)) + suffix;
}

// The upper limits of the buckets: ..., -1.1e-12, -1e-12, 0, 1e-12, 1.1e-12, ..., the largest number.
const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all;
    for (auto it = positive.rbegin(); it != positive.rend(); ++it) all.push_back(-*it);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

Message histogram_of(const Tensor& values) {
  const NoGradGuard no_grad;
  const Tensor dense = values.detach().to(kCPU, DType::f64).contiguous();
  std::vector<double> finite;
  std::copy_if(dense.data<double>(), dense.data<double>() + dense.numel(), std::back_inserter(finite),
               [](double v) { return std::isfinite(v); });
  check(!finite.empty(), "[add_histogram] the tensor of shape ", values.sizes(),
        " has no finite elements; check it before");
  const std::vector<double>& limits = bucket_limits();
  std::vector<double> counts(limits.size(), 0);
  double sum = 0, squares = 0;
  for (const double v : finite) {
    // A bucket holds the values below its limit, from the limit before on.
    const auto bucket = std::upper_bound(limits.begin(), limits.end() - 1, v) - limits.begin();
    ++counts[static_cast<std::size_t>(bucket)];
    sum += v;
    squares += v * v;
  }
  // Empty buckets at both ends are left out, but for one, whose limit is the lower limit of the first bucket.
  const auto used = [](double count) { return count > 0; };
  const auto end = std::find_if(counts.rbegin(), counts.rend(), used).base() - counts.begin();
  const auto first = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto begin = std::max<std::ptrdiff_t>(first - 1, 0);
  const auto [smallest, largest] = std::minmax_element(finite.begin(), finite.end());
  return Message()
      .real(1, *smallest)
      .real(2, *largest)
      .real(3, static_cast<double>(finite.size()))
      .real(4, sum)
      .real(5, squares)
      .reals(6, std::vector<double>(limits.begin() + begin, limits.begin() + end))
      .reals(7, std::vector<double>(counts.begin() + begin, counts.begin() + end));
}

Message tagged(const std::string& tag) { return Message().bytes(value::tag, tag); }

}  // namespace

struct SummaryWriter::Impl {
  explicit Impl(const std::string& path) : file(path) {}
  std::mutex mutex;
  EventFile file;
  Clock::time_point flushed = Clock::now();
};

SummaryWriter::SummaryWriter(std::string log_dir, Options options)
    : log_dir_(std::move(log_dir)), options_(std::move(options)) {
  std::error_code error;
  std::filesystem::create_directories(log_dir_, error);
  check<IoError>(!error, "[SummaryWriter] cannot create the folder ", log_dir_, ": ", error.message(),
                 "; choose another folder");
  impl_ = std::make_unique<Impl>(log_dir_ + "/" + file_name(options_.filename_suffix));
  impl_->file.write(
      Message().real(event::wall_time, wall_time()).bytes(event::file_version, "brain.Event:2").str());
  if (options_.purge_step) {
    constexpr std::uint64_t kStart = 1;
    impl_->file.write(
        new_event(*options_.purge_step).message(event::session_log, Message().integer(1, kStart)).str());
  }
  impl_->file.flush();
}

SummaryWriter::~SummaryWriter() = default;  // closes the file, which flushes it

void SummaryWriter::add_value(const Message& v, std::int64_t step) {
  const std::string record = new_event(step).message(event::summary, Message().message(1, v)).str();
  const std::lock_guard lock(impl_->mutex);
  impl_->file.write(record);
  if (std::chrono::duration<double>(Clock::now() - impl_->flushed).count() < options_.flush_seconds) return;
  impl_->file.flush();
  impl_->flushed = Clock::now();
}

void SummaryWriter::add_scalar(const std::string& tag, double number, std::int64_t step) {
  add_value(tagged(tag).real32(value::simple_value, static_cast<float>(number)), step);
}

void SummaryWriter::add_scalars(const std::string& main_tag,
                                const std::vector<std::pair<std::string, double>>& values,
                                std::int64_t step) {
  const std::lock_guard lock(scalars_mutex_);
  for (const auto& [name, number] : values) {
    std::string folder = main_tag + "_" + name;
    std::replace(folder.begin(), folder.end(), '/', '_');
    std::unique_ptr<SummaryWriter>& writer = scalars_[folder];
    if (!writer) writer = std::make_unique<SummaryWriter>(log_dir_ + "/" + folder, options_);
    writer->add_scalar(main_tag, number, step);
  }
}

void SummaryWriter::add_histogram(const std::string& tag, const Tensor& values, std::int64_t step) {
  tapestry::detail::check_defined("add_histogram", values);
  add_value(tagged(tag).message(value::histogram, histogram_of(values)), step);
}

void SummaryWriter::add_image(const std::string& tag, const Tensor& image, std::int64_t step) {
  const std::string png = encode_png(image);
  const auto size = [&](int dim) { return static_cast<std::uint64_t>(image.size(dim)); };
  const std::uint64_t channels = image.dim() == 3 ? size(0) : 1;  // the colour space has the same numbers
  const Message content =
      Message().integer(1, size(-2)).integer(2, size(-1)).integer(3, channels).bytes(4, png);
  add_value(tagged(tag).message(value::image, content), step);
}

void SummaryWriter::add_images(const std::string& tag, const Tensor& images, std::int64_t step) {
  add_image(tag, image_grid(images), step);
}

void SummaryWriter::add_text(const std::string& tag, const std::string& text, std::int64_t step) {
  constexpr std::uint64_t kString = 7;  // DT_STRING
  const Message shape = Message().message(2, Message().integer(1, 1));
  const Message content = Message().integer(1, kString).message(2, shape).bytes(8, text);
  const Message metadata = Message().message(1, Message().bytes(1, "text"));
  add_value(tagged(tag + "/text_summary").message(value::tensor, content).message(value::metadata, metadata),
            step);
}

HParam::HParam(const char* value) : HParam(std::string(value)) {}
HParam::HParam(std::string value) : value_(std::make_shared<const Value>(std::move(value))) {}
HParam::HParam(double value, bool is_bool)
    : value_(std::make_shared<const Value>(is_bool ? Value(value != 0) : Value(value))) {}
const HParam::Value& HParam::value() const { return *value_; }

// The messages are those of plugin_data.proto and api.proto of TensorBoard's plugin hparams.
void SummaryWriter::add_hparams(const std::vector<std::pair<std::string, HParam>>& hparams,
                                const std::vector<std::pair<std::string, double>>& metrics,
                                std::int64_t step) {
  Message experiment, session;
  for (const auto& [name, param] : hparams) {
    constexpr std::uint64_t kTypes[] = {2, 3, 1};  // bool, double, string
    experiment.message(4, Message().bytes(1, name).integer(4, kTypes[param.value().index()]));
    Message content;
    if (const bool* flag = std::get_if<bool>(&param.value())) content.integer(4, *flag);
    else if (const double* number = std::get_if<double>(&param.value())) content.real(2, *number);
    else content.bytes(3, std::get<std::string>(param.value()));
    session.message(1, Message().bytes(1, name).message(2, content));
  }
  for (const auto& [tag, number] : metrics)
    experiment.message(5, Message().message(1, Message().bytes(2, tag)));
  const auto add = [&](const char* tag, int field, const Message& content) {
    const Message plugin = Message().bytes(1, "hparams").message(2, Message().message(field, content));
    add_value(tagged(std::string("_hparams_/") + tag).message(value::metadata, Message().message(1, plugin)),
              step);
  };
  constexpr std::uint64_t kSuccess = 1;
  add("experiment", 2, experiment);
  add("session_start_info", 3, session.real(5, wall_time()));
  add("session_end_info", 4, Message().integer(1, kSuccess).real(2, wall_time()));
  for (const auto& [tag, number] : metrics) add_scalar(tag, number, step);
}

void SummaryWriter::flush() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->file.flush();
  }
  const std::lock_guard lock(scalars_mutex_);
  for (const auto& [folder, writer] : scalars_) writer->flush();
}

const std::string& SummaryWriter::path() const { return impl_->file.path(); }

}  // namespace tapestry::watch
