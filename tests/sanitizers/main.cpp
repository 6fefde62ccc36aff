// SPDX-License-Identifier: Apache-2.0
// padfree_fuzz CORPUS SECONDS SEED LAST: feeds every file of a folder, then damaged copies of them for so many seconds.
// Where a sanitizer finds something, or an input takes ten seconds, that input is written to the file LAST.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include "input.h"

namespace {

constexpr unsigned kTooLongSeconds = 10;

const char* last_path;
Bytes current;

Bytes readFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Called when the process is lost.
void keepCurrent() {
  std::ofstream(last_path, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
}

void onAlarm(int) {
  keepCurrent();
  std::fputs("the input takes too long\n", stderr);
  _exit(1);
}

void feed(const Bytes& bytes) {
  current = bytes;
  if (bytes.empty()) return;
  alarm(kTooLongSeconds);
  // A copy of its own, so that reading on is seen.
  const Bytes rest(bytes.begin() + 1, bytes.end());
  if (bytes[0] == 'P') feedPlugin(Input(rest.data(), rest.size()));
  if (bytes[0] == 'B') feedBatching(Input(rest.data(), rest.size()));
  if (bytes[0] == 'N') feedBackend(Input(rest.data(), rest.size()));
  if (bytes[0] == 'T') feedText(Input(rest.data(), rest.size()));
  if (bytes[0] == 'K') feedTokenizer(Input(rest.data(), rest.size()));
  alarm(0);
}

class Mutator {
 public:
  Mutator(std::vector<Bytes> corpus, uint64_t seed) : corpus_(std::move(corpus)), random_(seed) {}

  // A copy of some file with a few changes; its first byte stays.
  Bytes next() {
    Bytes made = corpus_[below(corpus_.size())];
    for (size_t changes = 1 + below(6); changes > 0; --changes) change(made);
    return made;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }
  size_t randomOffset(const Bytes& bytes) { return bytes.size() < 2 ? bytes.size() : 1 + below(bytes.size() - 1); }
  static Bytes::difference_type offset(size_t at) { return static_cast<Bytes::difference_type>(at); }

  void change(Bytes& bytes) {
    static constexpr uint8_t kTelling[] = {0, 1, 2, 127, 128, 254, 255, '"', '\\', '{', '[', '9', '-', 'u'};
    const size_t at = randomOffset(bytes);
    const Bytes& other = corpus_[below(corpus_.size())];
    const size_t from = randomOffset(other);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = kTelling[below(std::size(kTelling))];
        break;
      case 2:
        bytes.insert(bytes.begin() + offset(at), kTelling[below(std::size(kTelling))]);
        break;
      case 3:  // a part goes
        bytes.erase(bytes.begin() + offset(at), bytes.begin() + offset(std::min(bytes.size(), at + below(16))));
        break;
      case 4:  // a part of another file comes in
        bytes.insert(bytes.begin() + offset(at), other.begin() + offset(from),
                     other.begin() + offset(std::min(other.size(), from + below(64))));
        break;
      default:  // a part comes again, and again
        for (size_t times = below(40); times > 0 && bytes.size() < 4096; --times) {
          const Bytes part(bytes.begin() + offset(at), bytes.begin() + offset(std::min(bytes.size(), at + 8)));
          bytes.insert(bytes.begin() + offset(at), part.begin(), part.end());
        }
    }
  }

  std::vector<Bytes> corpus_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  last_path = argv[4];
  __sanitizer_set_death_callback(keepCurrent);
  signal(SIGALRM, onAlarm);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) {
    corpus.push_back(readFile(file));
    feed(corpus.back());
  }
  if (corpus.empty()) return 2;
  Mutator mutator(std::move(corpus), std::strtoull(argv[3], nullptr, 10));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(argv[2]));
  size_t fed = 0;
  for (; std::chrono::steady_clock::now() < end; ++fed) {
    feed(mutator.next());
  }
  std::printf("%zu files, %zu damaged copies: nothing found\n", files.size(), fed);
}
