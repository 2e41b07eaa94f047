#include "tapestry/apps/gpt/model_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tapestry/apps/common/run_folder.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/error.h"
#include "tapestry/core/gguf.h"
#include "tapestry/nn/models/lora.h"

namespace apps::gpt {

namespace fs = std::filesystem;
using namespace tapestry;
using Json = nlohmann::ordered_json;

namespace {

Json read_json(const std::string& path) {
  Json json = Json::parse(read_text(path), nullptr, false);
  check<IoError>(json.is_object(), "[gpt] ", path, " is not a JSON object; restore the file");
  return json;
}

// A token of tokenizer_config.json: its text, or an object with it.
std::string token_text(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return {};
}

std::string name_of(const data::TokenizerParts& parts, std::int64_t id) {
  for (const data::AddedToken& token : parts.added)
    if (token.id == id) return token.text;
  return {};
}

fs::path folder_of(const std::string& model) {
  const fs::path path(model);
  return fs::is_directory(path) ? path : path.parent_path().empty() ? fs::path(".") : path.parent_path();
}

}  // namespace

std::optional<data::Tokenizer> TokenizerFiles::tokenizer() const {
  if (!parts) return std::nullopt;
  return data::Tokenizer(*parts);
}
std::optional<data::ChatFormat> TokenizerFiles::chat(std::string* unknown) const {
  return data::chat_format_of(chat_template, unknown);
}

TokenizerFiles read_tokenizer_files(const std::string& model, const nn::ModelWeights& weights) {
  TokenizerFiles files;
  if (const GgufFile* const gguf = weights.gguf()) {
    const GgufMetadata& m = gguf->metadata();
    if (!m.has("tokenizer.ggml.model")) return files;
    files.parts = data::read_tokenizer_parts(m);
    files.chat_template = m.string("tokenizer.chat_template", "");
    files.bos = m.integer("tokenizer.ggml.bos_token_id", -1);
    files.eos = m.integer("tokenizer.ggml.eos_token_id", -1);
    for (const char* const end : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
      files.ends.push_back(m.integer(end, -1));
    return files;
  }
  const fs::path folder = folder_of(model);
  const auto path = [&](const char* name) { return (folder / name).string(); };
  if (fs::exists(folder / "config.json")) {
    const Json config = read_json(path("config.json"));
    const auto id = [&](const char* name) {
      auto found = config.find(name);
      if (found != config.end() && found->is_array() && !found->empty())
        return found->front().is_number_integer() ? found->front().get<std::int64_t>() : -1;
      return found != config.end() && found->is_number_integer() ? found->get<std::int64_t>()
                                                                 : std::int64_t{-1};
    };
    files.bos = id("bos_token_id");
    files.eos = id("eos_token_id");
    if (const auto all = config.find("eos_token_id"); all != config.end() && all->is_array())
      for (const Json& end : *all)
        if (end.is_number_integer()) files.ends.push_back(end.get<std::int64_t>());
  }
  if (!fs::exists(folder / "tokenizer.json")) return files;
  files.parts = data::read_tokenizer_parts(path("tokenizer.json"));
  if (fs::exists(folder / "chat_template.jinja"))
    files.chat_template = read_text(path("chat_template.jinja"));
  if (!fs::exists(folder / "tokenizer_config.json")) return files;
  const Json config = read_json(path("tokenizer_config.json"));
  if (files.chat_template.empty()) files.chat_template = token_text(config, "chat_template");
  for (const data::AddedToken& token : files.parts->added) {
    if (token.text == token_text(config, "eos_token")) files.eos = token.id;
    if (token.text == token_text(config, "bos_token")) files.bos = token.id;
  }
  return files;
}

void add_model_options(CommandLine& line, ModelOptions& o) {
  line.add("--model", o.model, "A GGUF file, or a folder with config.json and model.safetensors");
  line.add("--tokenizer", o.tokenizer, "A tokenizer.json to use instead of the model's");
  line.add("--adapter", o.adapter, "A folder with LoRA adapters, of gpt tune or PEFT");
  line.add("--weights", o.weights, "Whether weights of a GGUF file stay in its blocks, or become f32",
           {.check = one_of({"packed", "f32"})});
}

Pretrained load_pretrained(const ModelOptions& o) {
  if (o.model.empty()) throw UsageError("[gpt] pass --model FILE, a GGUF file or a folder with config.json");
  const std::string &path = o.model, &tokenizer = o.tokenizer;
  check<IoError>(fs::exists(path), "[gpt] there is no model ", path,
                 "; pass a GGUF file, or a folder with config.json and model.safetensors");
  const nn::ModelWeights weights(path);
  TokenizerFiles files = read_tokenizer_files(path, weights);
  if (!tokenizer.empty()) files.parts = data::read_tokenizer_parts(tokenizer);
  check<IoError>(files.parts.has_value(), "[gpt] ", path,
                 " has no tokenizer, so it can neither read nor write text; pass one with --tokenizer");
  data::Tokenizer words = [&] {
    try {
      return data::Tokenizer(*files.parts);
    } catch (const Error& e) {
      fail<IoError>("[gpt] the tokenizer of ", path, " does not fit together: ", e.what());
    }
  }();
  Pretrained p{nn::load_language_model(path, weights, {.packed = o.weights == "packed"}),
               words,
               std::nullopt,
               {},
               files.bos,
               {}};
  p.chat = files.chat(&p.unknown_chat);
  check(words.vocab_size() <= p.model->vocab_size(), "[gpt] the tokenizer has ", words.vocab_size(),
        " tokens, but the model ", path, " knows ", p.model->vocab_size(),
        "; pass the tokenizer that belongs to the model");
  if (!o.adapter.empty()) nn::load_lora(*p.model, o.adapter);
  p.model->eval();
  // A message of a conversation ends with a token of its own.
  if (p.chat) files.ends.push_back(data::ChatTemplate(words, *p.chat).end_of_message());
  files.ends.insert(files.ends.begin(), files.eos);
  for (const std::int64_t end : files.ends)
    if (end >= 0 && end < words.vocab_size() && std::find(p.stop.begin(), p.stop.end(), end) == p.stop.end())
      p.stop.push_back(end);
  if (p.first < 0 || p.first >= words.vocab_size()) p.first = p.stop.empty() ? -1 : p.stop.front();
  return p;
}

void write_tokenizer_files(const std::string& folder, const TokenizerFiles& files, std::int64_t context) {
  if (!files.parts) return;
  write_file_atomically((fs::path(folder) / "tokenizer.json").string(), data::tokenizer_json(*files.parts));
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["model_max_length"] = context;
  config["clean_up_tokenization_spaces"] = false;
  if (const std::string bos = name_of(*files.parts, files.bos); !bos.empty()) config["bos_token"] = bos;
  if (const std::string eos = name_of(*files.parts, files.eos); !eos.empty()) config["eos_token"] = eos;
  if (!files.chat_template.empty()) config["chat_template"] = files.chat_template;
  write_file_atomically((fs::path(folder) / "tokenizer_config.json").string(), config.dump(2) + "\n");
}

namespace {

// Marks a folder as that of a running process: the kernel drops the lock when the process ends. The lock is
// on the folder itself, because a file in it would become a part of the model.
class FolderOwner {
 public:
  explicit FolderOwner(const std::string& folder)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)),
        locked_(fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0) {}
  ~FolderOwner() {
    if (fd_ >= 0) close(fd_);
  }
  FolderOwner(const FolderOwner&) = delete;
  FolderOwner& operator=(const FolderOwner&) = delete;
  bool locked() const { return locked_; }

 private:
  int fd_;
  bool locked_;
};

// Removes what write_folder() of killed processes left beside `target`. A process that was killed between its
// two moves left no model under that name: the old one comes back.
void remove_leftovers(const std::string& target) {
  const fs::path parent = fs::path(target).parent_path();
  const std::string name = fs::path(target).filename().string();
  std::vector<std::pair<std::string, bool>> found;  // paths, and whether they were the model before
  std::error_code error;
  for (fs::directory_iterator entry(parent.empty() ? fs::path(".") : parent, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string other = entry->path().filename().string();
    for (const std::string mark : {".tmp-", ".old-"})
      if (other.starts_with(name + mark) && other.size() > name.size() + mark.size() &&
          other.find_first_not_of("0123456789", name.size() + mark.size()) == std::string::npos)
        found.emplace_back(entry->path().string(), mark == ".old-");
  }
  for (const auto& [folder, was_model] : found) {
    const FolderOwner owner(folder);
    if (!owner.locked()) continue;  // its process lives, or it is no folder
    if (was_model && !fs::exists(target, error)) fs::rename(folder, target, error);
    else fs::remove_all(folder, error);
  }
}

}  // namespace

void write_folder(const std::string& path, bool replace,
                  const std::function<void(const std::string&)>& write) {
  const std::string target = path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
  std::error_code error;
  remove_leftovers(target);
  const bool exists = fs::exists(target, error);
  if (exists && !replace)
    check<IoError>(fs::is_directory(target, error) && fs::is_empty(target, error), "[gpt] ", target,
                   " exists already; choose another name, or remove it");
  const std::string fresh = target + ".tmp-" + std::to_string(getpid());
  fs::create_directories(fresh, error);
  check<IoError>(!error, "[gpt] cannot create the folder ", fresh, ": ", error.message());
  const FolderOwner owner(fresh);
  try {
    write(fresh);
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
  const std::string old = target + ".old-" + std::to_string(getpid());
  if (exists) fs::rename(target, old, error);
  if (!error) fs::rename(fresh, target, error);
  if (error) {
    const std::string why = error.message();
    if (exists && !fs::exists(target, error)) fs::rename(old, target, error);
    fs::remove_all(fresh, error);
    fail<IoError>("[gpt] cannot move the model to ", target, ": ", why);
  }
  if (exists) fs::remove_all(old, error);
}

}  // namespace apps::gpt
