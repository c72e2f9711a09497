// What the tests of file formats share: a folder that goes away, stored samples, expected errors.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>

#include "linescan/base/error.h"
#include "linescan/files/bytes.h"

namespace linescan::test {

// A fresh folder, removed with its content at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "linescan-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) ADD_FAILURE() << "mkdtemp failed for " << pattern;
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A file of tests/files/data.
inline std::filesystem::path sample(const std::string& name) {
  return std::filesystem::path(LINESCAN_TEST_DATA) / name;
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void spill(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline Bytes to_bytes(std::string_view text) {
  const ByteSpan span = as_byte_span(text);
  return {span.begin(), span.end()};
}

// Runs `call`, which must throw a Kind whose message is one line and holds all `parts`.
template <typename Kind, typename Call>
void expect_error(Call&& call, std::initializer_list<std::string> parts) {
  try {
    call();
  } catch (const Kind& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    return;
  }
  ADD_FAILURE() << "no error, expected one with '" << *parts.begin() << "'";
}

}  // namespace linescan::test
