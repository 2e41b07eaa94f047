// Runs apps/unet as a user does.
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::Launch;

namespace {

Ended unet(std::vector<std::string> arguments) {
  return tests::run(Launch{.arguments = std::move(arguments), .program = "unet"});
}

}  // namespace

TEST_CASE("unet removes noise from the test images, and writes a picture and the model") {
  const tests::TempDir folder;
  const std::string picture = folder / "unet.png", model = folder / "unet.safetensors";
  const Ended ended =
      unet({"--train-images", "960", "--test-images", "100", "--epochs", "1", "--batch-size", "32", "--width",
            "8", "--lr", "0.01", "--goal", "14", "--picture", picture, "--save", model});
  INFO(ended.out << ended.err);
  CHECK(ended.status == 0);
  CHECK_THAT(ended.out,
             ContainsSubstring("noisy images: 12.8"));  // 10.5 dB, and more after clamping
  CHECK_THAT(ended.out, ContainsSubstring("goal of 14.0 dB reached"));
  CHECK(tests::read_file(picture).starts_with("\x89PNG\r\n\x1a\n"));
  CHECK(tests::read_file(model).size() > 10'000);
}

TEST_CASE("unet: wrong options end with status 2 and a missed goal with 3") {
  const Ended many = unet({"--train-images", "70000"});
  CHECK(many.status == 2);
  CHECK_THAT(many.err, ContainsSubstring("70000 training images were asked for, but there are 60000"));
  CHECK(unet({"--train-images", "10", "--batch-size", "11"}).status == 2);
  CHECK(unet({"--width", "7"}).status == 2);
  const Ended missed = unet({"--train-images", "64", "--test-images", "20", "--epochs", "1", "--width", "8",
                             "--goal", "60", "--picture", ""});
  CHECK(missed.status == 3);
  CHECK_THAT(missed.out, ContainsSubstring("goal of 60.0 dB not reached"));
}
