// Lists the files of a tree with their lengths, attributes in bulk.
//
//   walk WHERE DIRECTORY
//
// WHERE is as in copy.c.
#include <amphi.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>
#include <vector>

// A handle that closes itself.
class Handle {
 public:
  explicit Handle(amphi_handle handle) : handle_(handle) {}
  Handle(const Handle &) = delete;
  Handle &operator=(const Handle &) = delete;
  ~Handle() {
    if (handle_ > 0) amphi_close(handle_);
  }
  amphi_handle get() const { return handle_; }
  bool is_open() const { return handle_ > 0; }

 private:
  amphi_handle handle_;
};

static bool walk(amphi_handle fs, const std::string &path) {
  Handle directory(amphi_opendir(fs, path.c_str(), AMPHI_DIR_ATTRIBUTES));
  if (!directory.is_open()) {
    std::fprintf(stderr, "walk: %s\n", amphi_error());
    return false;
  }
  std::vector<amphi_entry> entries(512);
  std::vector<std::string> below;
  bool good = true;
  for (;;) {
    int64_t count = amphi_readdir(directory.get(), entries.data(), entries.size(), sizeof(amphi_entry));
    if (count < 0) {
      std::fprintf(stderr, "walk: %s\n", amphi_error());
      return false;
    }
    if (count == 0) break;
    for (int64_t i = 0; i < count; i++) {
      const amphi_entry &entry = entries[static_cast<size_t>(i)];
      const std::string name(entry.name, entry.name_len);
      if (name == "." || name == "..") continue;
      const std::string whole = path == "/" ? "/" + name : path + "/" + name;
      if (S_ISDIR(entry.stat.mode))
        below.push_back(whole);
      else
        std::printf("%llu %s\n", static_cast<unsigned long long>(entry.stat.size), whole.c_str());
    }
  }
  for (const std::string &directory_below : below) good = walk(fs, directory_below) && good;
  return good;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: walk WHERE DIRECTORY\n");
    return 2;
  }
  amphi_options options = {};
  options.size = sizeof options;
  options.servers = argv[1];
  options.umask = -1;
  Handle fs(argv[1][0] == '/' ? amphi_attach(argv[1]) : amphi_open_cluster(&options));
  if (!fs.is_open()) {
    std::fprintf(stderr, "walk: %s\n", amphi_error());
    return 1;
  }
  return walk(fs.get(), argv[2]) ? 0 : 1;
}
