# The tests of the report open it in a browser: install Debian's where we may and there is none.
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  command -v "$name" >/dev/null && exit 0
done
command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || exit 0

echo "Installing Chromium, which the tests of the report open it in."
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1; }
install || { apt-get update -qq >/dev/null 2>&1; install; } || echo "It cannot be installed here: those tests are skipped."
exit 0
