#pragma once
#include "tapestry/apps/common/page_files.h"

namespace apps {

/// The files of this folder, with those that it shares with the page of tapestry-compare.
extern const PageFiles kLiveFiles;

}  // namespace apps
