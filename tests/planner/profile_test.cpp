// Tests conversion to text and medians of profiles and links.
#include "tests/planner/examples.h"

using namespace tests;

TEST_CASE("profiles and links survive conversion to text") {
  Profile profile = profile_with(2);
  profile.contention = {1.5, 1.25, 2};
  profile.stages = {{1.5, 1, 1}, {2, 3, 1}};
  profile.zero_bubble_stages = {{{1, 1, 1.5}, 1, 2, 3}};
  profile.dispatch_s = 1e-5;
  profile.optimizer_state = 2;
  profile.loss.saved_bytes = Curve({{3, -2}});
  for (BlockProfile& b : profile.blocks) b.weight_grad_accumulate = {48, 24};
  profile.divided = {{.axes = "tensor=4:sequence=1", .blocks = profile.blocks, .loss = profile.loss}};
  profile.divided[0].blocks[1].layers_backward.resize(1);
  profile.divided[0].blocks[1].layers_backward[0].axis = "tensor";
  profile.divided[0].blocks[1].layers_backward[0].reduce_scatter = {3, proportional(8)};
  profile.divided[0].blocks[1].parts = {0};
  const Profile again = profile_from_text(to_text(profile));
  CHECK(to_text(again) == to_text(profile));
  CHECK(again.blocks[1].backward.at(0).end_bytes.points() ==
        profile.blocks[1].backward.at(0).end_bytes.points());
  CHECK(again.blocks[1].weight_grad_accumulate.growth == 24);
  REQUIRE(again.divided.size() == 1);
  CHECK(again.divided[0].axes == "tensor=4:sequence=1");
  CHECK(again.divided[0].blocks[1].layers_backward.at(0).reduce_scatter.count == 3);
  CHECK(again.divided[0].blocks[1].layers_backward.at(0).bytes(2) == 16);
  CHECK(again.divided[0].blocks[1].part_bytes() == again.blocks[1].all_parameter_bytes());
  std::string incomplete = to_text(profile);  // as a file from before the field existed
  incomplete.erase(incomplete.find("\"growth\""), std::string("\"growth\":0.0,").size());
  CHECK_THROWS_WITH(profile_from_text(incomplete), ContainsSubstring("growth"));
  std::string old = to_text(profile);  // profiles had no version once
  old.erase(old.find(",\"version\":3"), std::string(",\"version\":3").size());
  CHECK_THROWS_WITH(profile_from_text(old),
                    ContainsSubstring("a profile of version 1, and this program reads"));
  Profile wrong = profile;
  wrong.blocks[1].backward.at(0).parameter = static_cast<int>(wrong.blocks[1].parameter_bytes.size());
  CHECK_THROWS_WITH(profile_from_text(to_text(wrong)), ContainsSubstring("a gradient of parameter"));
  wrong = profile;
  wrong.divided[0].blocks[1].layers_backward[0].axis = "context";
  CHECK_THROWS_WITH(profile_from_text(to_text(wrong)), ContainsSubstring("communicates along context"));
  wrong = profile;
  wrong.divided[0].blocks[1].parts = {1};
  CHECK_THROWS_WITH(profile_from_text(to_text(wrong)), ContainsSubstring("parts of parameter 1"));
  wrong.divided[0].blocks.pop_back();
  CHECK_THROWS_WITH(profile_from_text(to_text(wrong)),
                    ContainsSubstring("2 blocks, and 1 when the devices of tensor=4"));
  CHECK(again.contention.update == 2);
  CHECK(again.optimizer_state == 2);
  CHECK(again.stages.at(1).backward == 3);
  CHECK(again.zero_bubble_stages.at(0).contention.weights == 1.5);
  CHECK(again.zero_bubble_stages.at(0).weight_grad_accumulate_s == 3);
  Link link = slow_link();
  link.ranks.compute_stall = 0.75;
  link.ranks.contention.update = link.master_contention.forward = 1.75;
  const Link read = link_from_text(to_text(link));
  CHECK(to_text(read) == to_text(link));
  CHECK(read.ranks.compute_stall == 0.75);
  CHECK((read.ranks.contention.update == 1.75 && read.master_contention.forward == 1.75));
  for (const char* text : {"", "{}", "[1]", "{\"blocks\": 3}"}) {
    CHECK_THROWS_WITH(profile_from_text(text), ContainsSubstring("the text is not a profile"));
    CHECK_THROWS_WITH(link_from_text(text), ContainsSubstring("the text is not a link"));
  }
}

TEST_CASE("median_of takes the median of every number") {
  std::vector<Profile> profiles;
  std::vector<Link> links;
  for (const double x : {3.0, 1.0, 2.0, 9.0}) {
    Profile p = profile_with(2);
    p.blocks[1].forward_s = Curve({{1, x}, {4, 10 - x}});
    p.contention.update = 1 + x;
    profiles.push_back(p);
    Link link = slow_link();
    link.ranks.message.latency_s = x;
    links.push_back(link);
  }
  const Profile median = median_of(profiles);
  CHECK(median.blocks[1].forward_s.points() == std::vector<std::pair<double, double>>{{1, 2.5}, {4, 7.5}});
  CHECK(median.contention.update == 3.5);
  CHECK(to_text(Profile{.blocks = {median.blocks[0]}}) ==
        to_text(Profile{.blocks = {profiles[0].blocks[0]}}));
  CHECK(median_of(links).ranks.message.latency_s == 2.5);
  links.pop_back();
  CHECK(median_of(links).ranks.message.latency_s == 2);
  CHECK(to_text(median_of({links[0]})) == to_text(links[0]));
  CHECK_THROWS_WITH(median_of({profile_with(2), profile_with(3)}), ContainsSubstring("the same model"));
  CHECK_THROWS_WITH(median_of(std::vector<Link>()), ContainsSubstring("the list of links is empty"));
}
