#include "tapestry/apps/compare/page/page.h"

#include "tapestry/apps/compare/document.h"

namespace apps::compare {

std::string page(const Report& report, const Judgement& judgement) {
  return page_of(kPage, text_of(judgement.main().headline), page_json(report, judgement));
}

}  // namespace apps::compare
