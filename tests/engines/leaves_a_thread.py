"""A module that starts a thread when it is imported, as some libraries do."""

import threading
import time

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
