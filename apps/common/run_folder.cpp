#include "tapestry/apps/common/run_folder.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/error.h"

namespace apps {

namespace fs = std::filesystem;
using tapestry::fail;
using tapestry::IoError;

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) fail<IoError>("[run] cannot read ", path, "; check that the folder holds a run");
  return text.str();
}

RunFolder::RunFolder(std::string path, bool resume) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  std::error_code ignored;
  if (!fs::is_directory(path_, ignored))
    fail<IoError>("[run] cannot create the folder ", path_, ": ", error.message(),
                  "; choose another --run-dir");
  lock_ = std::make_shared<tapestry::FolderLock>("run", path_);
  if (!resume && fs::exists(file("config.json")))
    fail<IoError>("[run] ", path_,
                  " already holds a run; continue it with --resume or choose another --run-dir");
  tapestry::remove_abandoned_files(path_, [](const std::string& name) {
    return name == "config.json" || name == "metrics.jsonl" || name == "curves.svg" ||
           name == "confusion.svg" || name == "mistakes.svg" || name == "live.html";
  });
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  if (!path_.empty()) tapestry::write_file_atomically(file(name), text);
}

}  // namespace apps
